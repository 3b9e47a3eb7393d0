//! A recorder as in the guide, and its values.

use std::time::Duration;

use campanile::metrics;
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

/// The time limit for everything a test waits for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a recorder as the guide shows it, without its listener.
pub(crate) fn recorder() -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new().with_recommended_naming(true);
    for (name, bounds) in metrics::buckets() {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).unwrap();
    }
    builder.build_recorder()
}

/// The values of a recorder.
#[derive(Clone)]
pub(crate) struct Scrape(pub(crate) PrometheusHandle);

impl Scrape {
    /// Sums the samples of this name with these labels, which exist.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.0.render();
        let samples = text.lines().filter_map(|line| sample(line, name, labels));
        let samples: Vec<f64> = samples.collect();
        assert!(!samples.is_empty(), "no sample of {name} with {labels:?} in:\n{text}");
        samples.iter().sum()
    }

    pub(crate) fn assert(&self, name: &str, labels: &[(&str, &str)], expected: f64) {
        assert_eq!(self.value(name, labels), expected, "{name} with {labels:?}");
    }

    /// Waits until the value is reached. Gauges of the consumer are updated once a second.
    pub(crate) async fn reaches(&self, name: &str, labels: &[(&str, &str)], expected: f64) {
        let current = || {
            let text = self.0.render();
            text.lines().filter_map(|line| sample(line, name, labels)).sum::<f64>()
        };
        let reached = async {
            while current() != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(TIMEOUT, reached).await.is_err() {
            panic!("{name} with {labels:?} is {} and not {expected}", current());
        }
    }
}

/// Parses a line such as `name{label="value"} 1`, if it has this name and these labels.
fn sample(line: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let (series, value) = line.rsplit_once(' ')?;
    let rest = series.strip_prefix(name)?;
    let has = |&(label, value): &(&str, &str)| rest.contains(&format!("{label}=\"{value}\""));
    let is_series = rest.is_empty() || rest.starts_with('{');
    (is_series && labels.iter().all(has)).then(|| value.parse().unwrap())
}
