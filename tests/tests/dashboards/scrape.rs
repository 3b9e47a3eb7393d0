//! The configuration of Prometheus for Kubernetes.

use campanile_test::eventually;
use serde_json::json;

use crate::files;
use crate::prometheus::Prometheus;
use crate::workload::TIMEOUT;

/// What finds the targets, which a build of Prometheus may lack.
const DISCOVERY: &str = "kubernetes_sd_configs:\n      - role: pod\n";

#[test]
fn metrics_ports_of_running_pods_are_scraped_with_a_job_for_each_environment() {
    let target = |namespace: &str, pod: &str, port: &str, phase: &str| {
        let meta = [
            ("namespace", namespace),
            ("pod_label_app", "billing"),
            ("pod_name", pod),
            ("pod_container_port_name", port),
            ("pod_phase", phase),
        ];
        let labels: serde_json::Map<_, _> = meta
            .iter()
            .map(|(name, value)| (format!("__meta_kubernetes_{name}"), json!(value)))
            .collect();
        json!({ "targets": ["127.0.0.1:1"], "labels": labels })
    };
    let targets = json!([
        target("staging", "billing-a", "metrics", "Running"),
        target("production", "billing-b", "metrics", "Running"),
        target("production", "billing-b", "health", "Running"),
        target("production", "billing-c", "metrics", "Succeeded"),
    ]);
    let config = files::read("dashboards/prometheus.yml");
    assert!(config.contains(DISCOVERY));
    let config = config.replace(DISCOVERY, &format!("static_configs: {targets}\n"));
    let rules = files::path("dashboards/alerts.yml");
    let config = config.replace("- alerts.yml", &format!("- {}", rules.display()));

    let prometheus = Prometheus::with_config(&config);
    let targets = eventually(TIMEOUT, || {
        let targets = prometheus.targets();
        (!targets.is_empty()).then_some(targets)
    });
    let mut targets = targets.unwrap();
    targets.sort_by_key(|labels| labels["job"].to_string());
    let labels = |job, pod| json!({ "instance": "127.0.0.1:1", "job": job, "pod": pod });
    let expected =
        [labels("billing-production", "billing-b"), labels("billing-staging", "billing-a")];
    assert_eq!(targets, expected);
    assert!(!prometheus.rules().is_empty());
}
