//! The metrics, for Prometheus.

use std::net::SocketAddr;

use campanile::metrics::buckets;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// Records metrics, and serves them at this address. Called before any store, layer or consumer is
/// created.
///
/// # Errors
/// Fails if the address is in use.
pub(crate) fn serve(address: SocketAddr) -> Result<(), BuildError> {
    let mut builder = PrometheusBuilder::new()
        // the names that the dashboard and the alerts use
        .with_recommended_naming(true)
        .with_http_listener(address);
    for (name, bounds) in buckets() {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)?;
    }
    builder.install()
}
