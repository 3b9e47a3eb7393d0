//! A real Prometheus, and `promtool`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use campanile_test::{Process, eventually, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files;

const INSTALL: &str = "install it with `apt-get install --no-install-recommends prometheus`, or \
    `cargo xtask install`";

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A Prometheus server with the alert rules, killed on drop.
pub(crate) struct Prometheus {
    process: Process,
    folder: TempDir,
    port: u16,
}

/// An alert rule, as Prometheus has read it.
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) query: String,
    pub(crate) severity: String,
    pub(crate) runbook_url: String,
    pub(crate) summary: String,
}

/// One series of the result of a query.
pub(crate) struct Sample {
    pub(crate) labels: String,
    pub(crate) value: f64,
}

impl Prometheus {
    /// Starts a server that scrapes this port.
    pub(crate) fn start(target: Option<u16>) -> Self {
        let targets: Vec<_> = target.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let config = json!({
            // Faults that are over in seconds are seen.
            "global": { "scrape_interval": "250ms", "scrape_timeout": "250ms" },
            "rule_files": [files::path("dashboards/alerts.yml")],
            "scrape_configs": [
                { "job_name": "billing", "static_configs": [{ "targets": targets }] },
            ],
        });
        // YAML includes JSON.
        Self::with_config(&config.to_string())
    }

    /// Starts a server with this configuration.
    pub(crate) fn with_config(config: &str) -> Self {
        let program = find("prometheus");
        let folder = tempfile::Builder::new().prefix("campanile-prometheus-").tempdir().unwrap();
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let port = free_port().unwrap();
        let mut command = Command::new(program);
        command
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .args(["--log.level=warn", &format!("--web.listen-address=127.0.0.1:{port}")])
            .current_dir(folder.path());
        let process = Process::spawn(&command, folder.path().join("log")).unwrap();
        let mut prometheus = Self { process, folder, port };
        prometheus.wait_until_ready();
        prometheus
    }

    fn wait_until_ready(&mut self) {
        let ready = || {
            let exited = self.process.exited().unwrap();
            assert!(exited.is_none(), "prometheus exited: {}", self.process.log().unwrap());
            self.request("/-/ready", "").filter(|(head, _)| head.contains(" 200 "))
        };
        let found = eventually(START_TIMEOUT, ready);
        assert!(found.is_some(), "prometheus is not ready in {}", self.folder.path().display());
    }

    /// Returns the alert rules.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let data = self.data("/api/v1/rules", "");
        let groups = data["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let rule = |rule: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Rule {
                name: text(&rule["name"]),
                query: text(&rule["query"]),
                severity: text(&rule["labels"]["severity"]),
                runbook_url: text(&rule["annotations"]["runbook_url"]),
                summary: text(&rule["annotations"]["summary"]),
            }
        };
        rules.map(rule).collect()
    }

    /// Returns the series of a query that results in a vector.
    pub(crate) fn query(&self, query: &str) -> Vec<Sample> {
        // Every byte may be encoded.
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.data("/api/v1/query", &format!("query={encoded}"));
        let sample = |sample: &Value| {
            let labels = sample["metric"].as_object().unwrap().values();
            let labels: Vec<_> = labels.map(|label| label.as_str().unwrap()).collect();
            let value = sample["value"][1].as_str().unwrap().parse().unwrap();
            Sample { labels: labels.join(" "), value }
        };
        data["result"].as_array().unwrap().iter().map(sample).collect()
    }

    /// Returns the labels of each target.
    pub(crate) fn targets(&self) -> Vec<Value> {
        let targets = self.data("/api/v1/targets", "");
        targets["activeTargets"].as_array().unwrap().iter().map(|it| it["labels"].clone()).collect()
    }

    fn data(&self, path: &str, form: &str) -> Value {
        let (_, body) = self.request(path, form).expect("prometheus answers");
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["status"], "success", "{path} {form}: {body}");
        answer["data"].take()
    }

    /// Sends a request, by HTTP 1.0, so that the body ends with the connection.
    fn request(&self, path: &str, form: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        let method = if form.is_empty() { "GET" } else { "POST" };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{form}",
            form.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }
}

/// Runs `promtool` in the folder of the dashboards, and returns its output if it succeeds.
pub(crate) fn promtool(args: &[&str]) -> String {
    let mut command = Command::new(find("promtool"));
    let output = command.args(args).current_dir(files::path("dashboards")).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "promtool {args:?}: {text}");
    text
}

fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("the program `{program}` is missing; {INSTALL}"))
}
