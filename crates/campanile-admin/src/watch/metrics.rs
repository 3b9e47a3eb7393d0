//! What a process of the application says about itself, at its endpoint for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use campanile_core::telemetry::Instrument;
use campanile_core::telemetry::instruments::{
    BUFFERED_RECORDS, COMPLETIONS_UNRECORDED, GROUP, LOCKS_HELD, OLDEST_AGE, PAUSED, REQUESTS,
    STORE_UNAVAILABLE,
};
use campanile_core::{BoxError, ConfigError};
use http::Uri;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::exposition::{Sample, parse};
use crate::error::chain;

/// The name of all our metrics begins so.
const PREFIX: &str = "campanile_";

/// The size of an answer, which may contain the metrics of the application as well.
const MAX_BYTES: usize = 64 << 20;

/// Reads the metrics at some URLs.
pub(super) struct Scraper {
    client: Client<HttpConnector, Empty<bytes::Bytes>>,
    timeout: Duration,
}

/// The metrics of a process at one time. Counters are sums since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessLook {
    /// By outcome. Empty if the process has answered no requests.
    pub(super) requests: BTreeMap<String, f64>,
    pub(super) in_flight: f64,
    pub(super) unrecorded: f64,
    pub(super) buffered: f64,
    pub(super) oldest_age: f64,
    pub(super) paused: BTreeSet<String>,
    pub(super) store_unavailable: bool,
}

/// Parses the URL of an endpoint. Without a path, it is `/metrics`.
pub(super) fn parse_url(url: &str) -> Result<Uri, ConfigError> {
    let invalid =
        || ConfigError::new("the URL of metrics must have the form http://HOST:PORT/metrics");
    let uri: Uri = url.parse().map_err(|_| invalid())?;
    // The error must not contain a password.
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
    let authority = authority.ok_or_else(invalid)?;
    if uri.scheme_str() != Some("http") {
        return Err(invalid());
    }
    let path = match uri.path_and_query() {
        Some(path) if path.as_str() != "/" => path.as_str(),
        _ => "/metrics",
    };
    format!("http://{authority}{path}").parse().map_err(|_| invalid())
}

impl Scraper {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), timeout }
    }

    /// Reads the metrics at a URL. The error is a text to show.
    pub(super) async fn look(&self, url: &Uri, group: &str) -> Result<ProcessLook, String> {
        let text = tokio::time::timeout(self.timeout, self.get(url)).await;
        let text = text.map_err(|_| format!("no answer within {:?}", self.timeout))?;
        Ok(ProcessLook::new(&text.map_err(|error| chain(&*error))?, group))
    }

    async fn get(&self, url: &Uri) -> Result<String, BoxError> {
        let response = self.client.get(url.clone()).await?;
        if !response.status().is_success() {
            return Err(format!("the answer is {}", response.status()).into());
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await?.to_bytes();
        Ok(String::from_utf8(body.into())?)
    }
}

impl ProcessLook {
    fn new(text: &str, group: &str) -> Self {
        let mut look = Self::default();
        let [requests, held, unrecorded] =
            [&REQUESTS, &LOCKS_HELD, &COMPLETIONS_UNRECORDED].map(Instrument::prometheus_name);
        let [buffered, oldest, paused, unavailable] =
            [&BUFFERED_RECORDS, &OLDEST_AGE, &PAUSED, &STORE_UNAVAILABLE]
                .map(Instrument::prometheus_name);
        for sample in parse(text, PREFIX) {
            if sample.label(&label(GROUP)).is_some_and(|of| of != group) {
                continue;
            }
            let Sample { name, value, .. } = &sample;
            let attribute = |instrument: &Instrument| {
                let attribute = instrument.attributes.iter().find(|it| !it.values.is_empty())?;
                sample.label(&label(attribute.name)).map(str::to_owned)
            };
            if *name == requests {
                let outcome = attribute(&REQUESTS).unwrap_or_default();
                *look.requests.entry(outcome).or_default() += value;
            } else if *name == held {
                look.in_flight += value;
            } else if *name == unrecorded {
                look.unrecorded += value;
            } else if *name == buffered {
                look.buffered += value;
            } else if *name == oldest {
                look.oldest_age = look.oldest_age.max(*value);
            } else if *name == paused && *value > 0.0 {
                look.paused.extend(attribute(&PAUSED));
            } else if *name == unavailable {
                look.store_unavailable |= *value > 0.0;
            }
        }
        look
    }

    /// Computes the requests per second since an earlier look. A process that was restarted since has
    /// counted from 0.
    pub(super) fn rates(&self, before: &Self, elapsed: Duration) -> BTreeMap<String, f64> {
        let rate = |(outcome, now): (&String, &f64)| {
            let before = before.requests.get(outcome).filter(|before| *before <= now);
            let count = now - before.copied().unwrap_or_default();
            (outcome.clone(), count / elapsed.as_secs_f64())
        };
        self.requests.iter().map(rate).collect()
    }
}

fn label(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
campanile_requests_total{campanile_namespace="a",campanile_request_outcome="processed"} 10
campanile_requests_total{campanile_namespace="b",campanile_request_outcome="processed"} 5
campanile_requests_total{campanile_namespace="b",campanile_request_outcome="duplicate"} 2
campanile_locks_held{campanile_namespace="a"} 3
campanile_completions_unrecorded{campanile_namespace="a"} 1
campanile_consumer_buffered_records{messaging_consumer_group_name="g"} 40
campanile_consumer_buffered_records{messaging_consumer_group_name="other"} 9000
campanile_consumer_oldest_age_seconds{messaging_consumer_group_name="g",messaging_destination_partition_id="0"} 1.5
campanile_consumer_oldest_age_seconds{messaging_consumer_group_name="g",messaging_destination_partition_id="1"} 0.5
campanile_consumer_paused{messaging_consumer_group_name="g",campanile_pause_cause="handle"} 0
campanile_consumer_paused{messaging_consumer_group_name="g",campanile_pause_cause="flood_limit"} 1
campanile_consumer_store_unavailable{messaging_consumer_group_name="g"} 1
"#;

    #[test]
    fn metrics_of_the_group_are_summed() {
        let look = ProcessLook::new(TEXT, "g");
        let expected = [("duplicate".to_owned(), 2.0), ("processed".to_owned(), 15.0)];
        assert_eq!(look.requests.clone().into_iter().collect::<Vec<_>>(), expected);
        assert_eq!((look.in_flight, look.unrecorded, look.buffered), (3.0, 1.0, 40.0));
        assert_eq!((look.oldest_age, look.store_unavailable), (1.5, true));
        assert_eq!(look.paused, BTreeSet::from(["flood_limit".to_owned()]));
        assert_eq!(ProcessLook::new("nothing\n", "g"), ProcessLook::default());
    }

    #[test]
    fn rates_start_from_zero_after_a_restart() {
        let before = ProcessLook::new(TEXT, "g");
        let mut after = before.clone();
        after.requests.insert("processed".into(), 35.0);
        after.requests.insert("duplicate".into(), 1.0);
        let rates = after.rates(&before, Duration::from_secs(2));
        assert_eq!((rates["processed"], rates["duplicate"]), (10.0, 0.5));
    }

    #[test]
    fn url_is_completed_or_refused() {
        let url =
            |url| parse_url(url).map(|url| url.to_string()).map_err(|error| error.to_string());
        assert_eq!(url("http://pod:9000").unwrap(), "http://pod:9000/metrics");
        assert_eq!(url("http://pod:9000/m?x=1").unwrap(), "http://pod:9000/m?x=1");
        for refused in ["https://pod", "pod:9000", "http://", "http://u:s3cret@pod", "no url"] {
            let error = url(refused).unwrap_err();
            assert!(error.contains("http://HOST:PORT") && !error.contains("s3cret"), "{error}");
        }
    }
}
