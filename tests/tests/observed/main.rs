//! What is found about a loop written by hand that is killed while it is observed.

use std::process::Command;
use std::time::Duration;

use campanile_admin::StoreConfig;
use campanile_admin::explain::KeySource;
use campanile_admin::observe::{Observe, RecordFindingKind};
use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use tempfile::TempDir;
use tokio::time::Instant;

const TOPIC: &str = "bookings";
const GROUP: &str = "bookings";
const RECORDS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_claims_are_found_as_lost_records() {
    let kafka = KafkaServer::start().unwrap();
    let redis = RedisServer::start().unwrap();
    kafka.create_topic(TOPIC, 1, &[]).unwrap();
    let payment = |number| format!("p-{number}");
    let record = |number| {
        let payment = payment(number);
        Message::to(TOPIC).partition(0).header("idempotency-key", &payment).payload(payment)
    };
    kafka.producer().produce_all((0..RECORDS).map(record)).unwrap();

    let folder = TempDir::new().unwrap();
    for (number, stop_at) in ["claimed p-2", "begun p-5", ""].into_iter().enumerate() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claimer"));
        command.args([&*kafka.bootstrap(), GROUP, TOPIC, &redis.url(), stop_at]);
        let log = folder.path().join(format!("log-{number}"));
        let mut process = Process::spawn(&command, log).unwrap();
        if stop_at.is_empty() {
            let status = process.wait(TIMEOUT).unwrap();
            assert!(status.is_some_and(|it| it.success()), "{}", process.log().unwrap());
        } else {
            let stopped = || process.log().unwrap().contains("stopped").then_some(());
            let is_stopped = eventually(TIMEOUT, stopped).is_some();
            assert!(is_stopped, "{stop_at}: {}", process.log().unwrap());
            process.kill().unwrap();
        }
    }
    let booked = redis.cli(&["LRANGE", "bookings", "0", "-1"]).unwrap();
    let booked: Vec<_> = booked.split_whitespace().map(str::to_owned).collect();
    let lost = [2, 5];
    let is_kept = |number: &usize| !lost.contains(number);
    assert_eq!(booked, (0..RECORDS).filter(is_kept).map(payment).collect::<Vec<_>>());

    let store = redis.url().parse::<StoreConfig>().unwrap().connect_to_inspect().await.unwrap();
    let mut client = kafka.consumer_config("unused");
    client.remove("group.id");
    let observe = Observe::new(TOPIC, GROUP, "bookings".try_into().unwrap());
    let (key, start) = (KeySource::default(), Instant::now());
    // Until the lock of the killed booking has expired.
    let (found, report) = loop {
        let mut found = Vec::new();
        let report = observe.run(&client, &store, &key, |finding| {
            found.push((finding.record.to_string(), finding.kind));
            Ok(())
        });
        let report = report.await.unwrap();
        if report.running == 0 || start.elapsed() > TIMEOUT {
            break (found, report);
        }
    };
    let at = |offset| format!("{TOPIC}/0@{offset}");
    let kinds = [RecordFindingKind::NoEntry, RecordFindingKind::Unfinished];
    assert_eq!(found, lost.map(at).into_iter().zip(kinds).collect::<Vec<_>>());
    assert_eq!((report.records, report.finished, report.completed), (10, 10, 8));
}
