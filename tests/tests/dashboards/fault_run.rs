//! A real Prometheus scrapes real consumers while faults are planted.

use std::net::Ipv4Addr;

use campanile::metrics::{self, INSTRUMENTS};
use campanile_test::free_port;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

use crate::expressions::{metric, without_comparison};
use crate::faults::Faults;
use crate::files::{self, Query};
use crate::prometheus::{Prometheus, Sample};
use crate::visible::SHOWN;

/// The alerts with conditions that take longer than the run, or need the end of its process.
const NOT_MET: &[&str] = &[
    "CampanileOldestRecordAges",
    "CampanileLagGrows",
    "CampanileConsumerGone",
    "CampanileTargetDown",
    "CampanileRebalanceStorm",
    "CampanileCommitsFail",
];

/// Installs the recorder as in the guide, with its listener.
fn serve_metrics() -> u16 {
    let port = free_port().unwrap();
    let mut builder = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .with_http_listener((Ipv4Addr::LOCALHOST, port));
    for (name, bounds) in metrics::buckets() {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).unwrap();
    }
    builder.install().unwrap();
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn faults_show_in_every_panel_and_alert() {
    // Shown if the test fails, without the servers that are gone by then.
    let filter = "info,librdkafka=off,rdkafka=off";
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_test_writer().init();
    let port = serve_metrics();
    let mut faults = Faults::new(Prometheus::start(Some(port)));
    let billing = faults.billing().await;
    faults.duplicates().await;
    faults.failures().await;
    faults.answers().await;
    faults.observed().await;
    faults.lost_locks().await;
    faults.lock_taken_over().await;
    faults.stalled_partition().await;
    faults.redis_outage().await;
    faults.dependency_outage().await;
    faults.unsafe_store().await;
    faults.lost_data().await;
    faults.policies().await;
    faults.log_changes().await;
    faults.rebalance(&billing).await;
    faults.publications().await;
    faults.kafka_outage().await;
    billing.stop().await;
    let (prometheus, risen) = faults.into_risen();

    let not_planted: Vec<_> =
        SHOWN.iter().map(|(series, _)| series).filter(|series| !risen.contains(**series)).collect();
    assert!(not_planted.is_empty(), "not planted: {not_planted:?}");
    assert_values_occurred(&prometheus);
    let panels = print_panels(&prometheus);
    let alerts = print_alerts(&prometheus);
    assert!(panels.is_empty() && alerts.is_empty(), "no series: {panels:?}, {alerts:?}");
}

/// Returns the largest value of each series during the run.
fn largest(prometheus: &Prometheus, query: &str) -> Vec<Sample> {
    let mut samples = prometheus.query(&format!("max_over_time(({query})[10m:250ms])"));
    samples.retain(|sample| !sample.value.is_nan());
    samples
}

/// Checks that each outcome, cause and state has occurred.
fn assert_values_occurred(prometheus: &Prometheus) {
    for instrument in INSTRUMENTS {
        for attribute in instrument.attributes {
            // A settlement that fails, is released or given up can be refused as well.
            if attribute.name == "error.type" || attribute.name == "campanile.settlement" {
                continue;
            }
            for value in attribute.values {
                let label = attribute.name.replace('.', "_");
                let series = format!("{}{{{label}=\"{value}\"}}", metric(instrument));
                let occurred = largest(prometheus, &series).iter().any(|it| it.value > 0.0);
                assert!(occurred, "{series} has not occurred");
            }
        }
    }
}

/// Prints the panels, and returns the queries without a series.
fn print_panels(prometheus: &Prometheus) -> Vec<String> {
    let (mut row, mut missing) = (String::new(), Vec::new());
    for panel in files::panels() {
        if row != panel.row {
            row.clone_from(&panel.row);
            println!("== {row}");
        }
        for Query { expr, legend } in panel.queries {
            let samples = largest(prometheus, &expr);
            // A legend with variables is the series' labels.
            let legend = if legend.contains("{{") { "" } else { &legend };
            println!("{:<36} {}", format!("{} {legend}", panel.title), compact(&samples));
            if samples.is_empty() {
                missing.push(expr);
            }
        }
    }
    missing
}

/// Prints the alerts, and returns the expressions without a series.
fn print_alerts(prometheus: &Prometheus) -> Vec<String> {
    println!("== Alerts");
    let mut missing = Vec::new();
    for rule in prometheus.rules() {
        let is_not_met = NOT_MET.contains(&&*rule.name);
        let query = if is_not_met { without_comparison(&rule.query) } else { rule.query };
        let samples = largest(prometheus, &query);
        let state = if is_not_met { "not met" } else { "met" };
        println!("{:<36} {state}: {}", rule.name, compact(&samples));
        if samples.is_empty() {
            missing.push(query);
        }
    }
    missing
}

/// Formats the largest values of the series, without those that are zero.
fn compact(samples: &[Sample]) -> String {
    let format = |sample: &Sample| format!("{} {:.3}", sample.labels, sample.value);
    let mut texts: Vec<_> = samples.iter().filter(|it| it.value != 0.0).map(format).collect();
    texts.sort();
    match &texts[..] {
        [] if samples.is_empty() => "no data".to_owned(),
        [] => "0".to_owned(),
        texts => texts.join(", "),
    }
}
