//! The dashboard, and what is common to the files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Returns the path of a file of the repository.
pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).canonicalize().unwrap()
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap()
}

pub(crate) fn dashboard() -> Value {
    serde_json::from_str(&read("dashboards/campanile.json")).unwrap()
}

/// A panel with queries.
pub(crate) struct Panel {
    pub(crate) row: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) queries: Vec<Query>,
}

pub(crate) struct Query {
    /// As Prometheus receives it, with all values of all variables.
    pub(crate) expr: String,
    pub(crate) legend: String,
}

/// Returns the panels of the dashboard in their order.
pub(crate) fn panels() -> Vec<Panel> {
    let (mut row, mut panels) = (String::new(), Vec::new());
    for panel in dashboard()["panels"].as_array().unwrap() {
        let text = |name: &str| panel[name].as_str().unwrap_or_default().to_owned();
        if panel["type"] == "row" {
            row = text("title");
            continue;
        }
        let query = |target: &Value| Query {
            expr: substitute(target["expr"].as_str().unwrap()),
            legend: target["legendFormat"].as_str().unwrap().to_owned(),
        };
        let queries = panel["targets"].as_array().unwrap().iter().map(query).collect();
        let (title, description) = (text("title"), text("description"));
        panels.push(Panel { row: row.clone(), title, description, queries });
    }
    panels
}

/// Replaces the variables as Grafana does. The intervals are longer than the fault run.
pub(crate) fn substitute(query: &str) -> String {
    let variables = [
        ("$__rate_interval", "5m"),
        ("$__range", "5m"),
        ("$job", ".*"),
        ("$group", ".*"),
        ("$namespace", ".*"),
    ];
    let replace = |query: String, (name, value): &(&str, &str)| query.replace(name, value);
    let query = variables.iter().fold(query.to_owned(), replace);
    assert!(!query.contains('$'), "unknown variable: {query}");
    query
}
