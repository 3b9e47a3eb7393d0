//! Runs the program as it is deployed: with its servers, its environment, and SIGTERM at the end.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use campanile_test::{Message, MockKafka, PgServer, Process, RedisServer, eventually, free_port};
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::{Value, json};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const PAYMENTS: usize = 20;

#[test]
fn payments_are_booked_once_until_sigterm() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("payments", 4).unwrap();
    kafka.create_topic("payments.dead", 1).unwrap();
    let (redis, postgres) = (RedisServer::start().unwrap(), PgServer::start().unwrap());
    postgres.psql(include_str!("../schema.sql")).unwrap();
    let mut service = Service::start(&[
        ("BILLING_KAFKA_BOOTSTRAP_SERVERS", &kafka.bootstrap()),
        ("BILLING_KAFKA_GROUP_ID", "billing"),
        ("REDIS_URL", &redis.url()),
        ("DATABASE_URL", &postgres.url()),
    ]);

    // the last payment twice, and a record that is not a payment
    let payments = (0..PAYMENTS).chain([PAYMENTS - 1]).map(|number| {
        let payment = json!({ "id": format!("p-{number}"), "account": "alice", "cents": number });
        payment.to_string()
    });
    let messages = payments.chain(["not a payment".to_owned()]);
    let messages = messages.map(|body| Message::to("payments").payload(body));
    kafka.producer().produce_all(messages).unwrap();

    service.wait_for("a booked payment is delivered again", |service| {
        (service.events("the payment is booked already").len() == 1).then_some(())
    });
    service.wait_for("all payments are booked", |_| {
        let booked = postgres.psql("SELECT count(*), sum(cents) FROM booking").unwrap();
        (booked.trim() == "20|190").then_some(())
    });
    let dead_letters: BaseConsumer = kafka.consumer_config("operators").create().unwrap();
    dead_letters.subscribe(&["payments.dead"]).unwrap();
    let dead_letter = service.wait_for("the record that is not a payment is dead-lettered", |_| {
        Some(dead_letters.poll(Duration::from_millis(100))?.unwrap().detach())
    });
    assert_eq!(dead_letter.payload(), Some(&b"not a payment"[..]));

    let address = service.probes();
    for (path, status) in [("live", "200 OK"), ("ready", "200 OK"), ("other", "404 Not Found")] {
        let response = get(address, &format!("/health/{path}"));
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {response}");
    }

    // The counters of the consumer are updated once a second.
    service.wait_for("the metrics have all records", |service| {
        let metrics = get(service.metrics, "/metrics");
        let count = |name: &str| {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
        };
        let counts =
            ["campanile_consumer_records_total{", "campanile_duplicates_total{"].map(count);
        (counts == [22.0, 1.0]).then_some(())
    });

    let status = service.process.terminate().unwrap();
    assert_eq!(status.code(), Some(0), "{}", service.log());
    let stopped = service.events("stopped").pop().unwrap();
    let counts = ["received", "processed", "dead_lettered", "left"];
    let counts = counts.map(|name| stopped["fields"][name].as_u64().unwrap());
    // all records; the payments and the duplicate; the dead letter; none unfinished
    assert_eq!(counts, [22, 21, 1, 0], "{}", service.log());
}

#[test]
fn invalid_setting_ends_the_program_with_an_error() {
    let text = start_error(&[("LOCK_TTL_SECONDS", "soon")]);
    assert!(text.contains("LOCK_TTL_SECONDS must be a whole number of seconds"), "{text}");
}

#[test]
fn missing_kafka_setting_is_reported_before_connecting() {
    // Nothing listens on port 1.
    let text = start_error(&[
        ("BILLING_KAFKA_GROUP_ID", "billing"),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("DATABASE_URL", "postgres://127.0.0.1:1/billing"),
    ]);
    assert_eq!(text, "`BILLING_KAFKA_BOOTSTRAP_SERVERS` (`bootstrap.servers`) must be set");
}

/// Starts the program with these variables, and returns the error with which it ends.
fn start_error(variables: &[(&str, &str)]) -> String {
    let mut service = Service::start(variables);
    let status = service.process.wait(TIMEOUT).unwrap().expect("the program ends");
    assert_eq!(status.code(), Some(1));
    let error = service.events("the service ends").pop().unwrap();
    error["fields"]["error"].as_str().unwrap().to_owned()
}

/// The running program.
struct Service {
    process: Process,
    log: PathBuf,
    metrics: SocketAddr,
    _folder: TempDir,
}

impl Service {
    fn start(variables: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_billing"));
        let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        command.env("HEALTH_ADDRESS", "127.0.0.1:0").env("METRICS_ADDRESS", metrics.to_string());
        command.env_remove("RUST_LOG");
        command.envs(variables.iter().copied());
        Self { process: Process::spawn(&command, &log).unwrap(), log, metrics, _folder: folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Finds the logged events with this message. Each complete line of the log is JSON.
    fn events(&self, message: &str) -> Vec<Value> {
        let log = self.log();
        let (lines, _incomplete) = log.rsplit_once('\n').unwrap_or_default();
        let events = lines.lines().map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        });
        events.filter(|event: &Value| event["fields"]["message"] == message).collect()
    }

    /// Waits for the address of the probes.
    fn probes(&self) -> SocketAddr {
        self.wait_for("probes are served", |service| {
            let event = service.events("serving probes").pop()?;
            Some(event["fields"]["address"].as_str()?.parse().unwrap())
        })
    }

    fn wait_for<T>(&self, what: &str, condition: impl Fn(&Self) -> Option<T>) -> T {
        eventually(TIMEOUT, || condition(self))
            .unwrap_or_else(|| panic!("timed out waiting until {what}: {}", self.log()))
    }
}

/// Sends a request and reads the whole response.
fn get(address: SocketAddr, path: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    response
}
