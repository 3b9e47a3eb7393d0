//! The client's certificate, which librdkafka reads only when a client is created.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

#[cfg(feature = "tls")]
use campanile_core::certificate::validity;
use campanile_driver::SourceContext;
use campanile_driver::private::now as wall_clock;
use rdkafka::client::{Client, ClientContext};
use tokio::time::Instant;

use super::Settings;

/// How often the certificate is checked, and the timeout of a request that tests the brokers.
const INTERVAL: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);

/// How long no broker is reachable before only a restart helps: twice the interval at which librdkafka
/// repeats an error.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The certificate, and the files from which a new client would read another one.
pub(super) struct ClientCertificate {
    /// The contents of the files when the client was created.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// When the certificate expires. `None` if there is none, or none in PEM.
    expires: Option<SystemTime>,
    context: SourceContext,
    state: Mutex<CertificateState>,
}

struct CertificateState {
    next_check: Instant,
    /// The next warning is logged once less than this is left.
    warn_below: Duration,
    /// When a connection last failed because of TLS.
    refused: Option<Instant>,
    /// Since when no broker is reachable.
    unreachable: Option<Instant>,
}

impl ClientCertificate {
    /// Reads the certificate. Must be called before the client is created.
    pub(super) fn new(settings: &Settings) -> Self {
        let get = |name| settings.client.get(name);
        let paths = ["ssl.certificate.location", "ssl.keystore.location", "ssl.ca.location"];
        let paths = paths.into_iter().filter_map(get);
        let files: Vec<_> = paths.map(|path| (path.into(), std::fs::read(path).ok())).collect();
        let file = get("ssl.certificate.location").and_then(|_| files.first()?.1.as_deref());
        let pem = get("ssl.certificate.pem").map(str::as_bytes).or(file);
        let (begins, expires) = pem.and_then(validity).unzip();
        let lifetime = begins.and_then(|begins| expires?.duration_since(begins).ok());
        let (next_check, warn_below) = (Instant::now(), lifetime.unwrap_or_default() / 10);
        let state = CertificateState { next_check, warn_below, refused: None, unreachable: None };
        Self { files, expires, context: settings.context.clone(), state: Mutex::new(state) }
    }

    /// Notes the text of a connection's error.
    pub(super) fn note_error(&self, reason: &str) {
        if reason.contains("SSL") {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).refused =
                Some(Instant::now());
        }
    }

    /// Warns before the certificate expires, and notes whether only a restart helps.
    pub(super) fn check<C: ClientContext>(&self, client: &Client<C>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < state.next_check {
            return;
        }
        state.next_check = now + INTERVAL;
        let left = self.expires.map(|at| at.duration_since(wall_clock()).unwrap_or_default());
        if let Some(left) = left.filter(|left| *left < state.warn_below) {
            state.warn_below = left / 2;
            tracing::warn!(
                ?left,
                "the client certificate for the brokers expires soon, or has expired; replace its files, \
                 then restart this process, because librdkafka reads them only at the start"
            );
        }
        let is_refused = left == Some(Duration::ZERO)
            || state.refused.is_some_and(|refused| now - refused < STALE_AFTER);
        let is_unreachable = is_refused
            && self.files.iter().any(|(path, read)| std::fs::read(path).ok() != *read)
            && client.fetch_metadata(None, PROBE_TIMEOUT).is_err();
        state.unreachable = is_unreachable.then(|| state.unreachable.unwrap_or(now));
        let is_stale = state.unreachable.is_some_and(|since| now - since >= STALE_AFTER);
        if !self.context.set_certificate_stale(is_stale) && is_stale {
            tracing::error!(
                "no broker is reachable with the certificates that this process has read, and their files \
                 have been replaced; restart this process, which is not live any more"
            );
        }
    }
}

/// Without the feature `tls`, librdkafka refuses certificates.
#[cfg(not(feature = "tls"))]
fn validity(_: &[u8]) -> Option<(SystemTime, SystemTime)> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use campanile_driver::Unhealthy;
    use campanile_test::MockKafka;
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};

    use super::*;
    use crate::client::ClientSettings;
    use crate::source::tests::settings;

    fn client(brokers: &str) -> BaseConsumer {
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
    }

    /// Settings with a certificate in a file of this name, and its path.
    fn with_certificate(name: &str) -> (Settings, PathBuf) {
        let path = std::env::temp_dir().join(format!("campanile-{}-{name}", std::process::id()));
        fs::write(&path, "before").unwrap();
        let mut client = ClientSettings::default();
        client.set("ssl.certificate.location", path.to_str().unwrap());
        (settings(client, "orders"), path)
    }

    #[tokio::test(start_paused = true)]
    async fn refused_certificate_with_a_new_file_is_not_live_while_no_broker_is_reachable() {
        let kafka = MockKafka::start(1).unwrap();
        let (reachable, unreachable) = (client(&kafka.bootstrap()), client("127.0.0.1:1"));
        // The probes are shorter than a first connection may take.
        reachable.fetch_metadata(None, Duration::from_secs(60)).unwrap();
        let (settings, path) = with_certificate("refused");
        let certificate = ClientCertificate::new(&settings);
        let live_after = async |client: &BaseConsumer, time: Duration| {
            let end = Instant::now() + time;
            while Instant::now() < end {
                tokio::time::advance(INTERVAL).await;
                certificate.note_error("ssl://b:1: SSL handshake failed: certificate expired");
                certificate.check(client.client());
            }
            settings.context.handle().health().live
        };
        assert_eq!(live_after(&unreachable, 2 * STALE_AFTER).await, Ok(()), "the file is the same");
        fs::write(&path, "after").unwrap();
        assert_eq!(live_after(&reachable, 2 * STALE_AFTER).await, Ok(()));
        assert_eq!(live_after(&unreachable, STALE_AFTER).await, Ok(()));
        assert_eq!(live_after(&unreachable, INTERVAL).await, Err(Unhealthy::Certificate));
        assert_eq!(live_after(&reachable, INTERVAL).await, Ok(()));
        fs::remove_file(path).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_brokers_without_a_refusal_keep_the_consumer_live() {
        let (settings, path) = with_certificate("outage");
        let certificate = ClientCertificate::new(&settings);
        fs::remove_file(path).unwrap();
        let client = client("127.0.0.1:1");
        for _ in 0..20 {
            tokio::time::advance(INTERVAL).await;
            certificate.note_error("b:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused");
            certificate.check(client.client());
        }
        assert_eq!(settings.context.handle().health().live, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_are_logged_at_a_tenth_and_then_at_each_half() {
        let client = client("127.0.0.1:1");
        let day = Duration::from_secs(86_400);
        let (settings, path) = with_certificate("expires");
        fs::remove_file(path).unwrap();
        let mut certificate = ClientCertificate::new(&settings);
        certificate.state.get_mut().unwrap().warn_below = 9 * day;
        let mut warned_below = async |left: Duration| {
            certificate.expires = Some(wall_clock() + left);
            tokio::time::advance(INTERVAL).await;
            certificate.check(client.client());
            let below = certificate.state.lock().unwrap().warn_below.as_secs_f64();
            (below / day.as_secs_f64() * 100.0).round() / 100.0
        };
        assert_eq!(warned_below(10 * day).await, 9.0);
        assert_eq!([warned_below(8 * day).await, warned_below(5 * day).await], [4.0, 4.0]);
        assert_eq!([warned_below(2 * day).await, warned_below(Duration::ZERO).await], [1.0, 0.0]);
    }
}
