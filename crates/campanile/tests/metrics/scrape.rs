//! A recorder as in the guide, and its values.

use std::time::Duration;

use campanile::metrics;
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

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
        for _ in 0..3_000 {
            let text = self.0.render();
            let value: f64 = text.lines().filter_map(|line| sample(line, name, labels)).sum();
            if value == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "timed out waiting until {name} with {labels:?} is {expected}:\n{}",
            self.0.render()
        );
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
