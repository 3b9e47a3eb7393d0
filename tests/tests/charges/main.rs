//! Processes are killed after their call to a payment provider and before they have recorded it. The
//! provider recognizes the `Idempotency-Key` of a call.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
mod provider;

use std::process::Command;
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use tempfile::TempDir;

use provider::{Payments, Provider};

const TOPIC: &str = "payments";
const PAYMENTS: usize = 500;
const KILLS: usize = 6;
const PARTITIONS: i32 = 4;
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn killed_processes_charge_once_by_derived_keys() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let kafka = KafkaServer::start().unwrap();
    kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    // One in ten payments is sent twice.
    let numbers = (0..PAYMENTS).chain((0..PAYMENTS).step_by(10));
    let message = |number| {
        let message = Message::to(TOPIC).partition(number as i32 % PARTITIONS);
        message.payload(format!("p-{number}"))
    };
    kafka.producer().produce_all(numbers.map(message)).unwrap();

    let payments = charge(&kafka, "derived", seed);
    assert_eq!(payments.len(), PAYMENTS);
    let wrong: Vec<_> = payments.iter().filter(|(_, payment)| payment.charges != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let calls: usize = payments.values().map(|payment| payment.calls).sum();
    assert!(calls >= PAYMENTS + KILLS, "only {calls} calls");

    // The same with a key for each attempt, so that the test is able to fail.
    let payments = charge(&kafka, "token", seed);
    let twice = payments.values().filter(|payment| payment.charges > 1).count();
    println!("{calls} calls; without derived keys, {twice} payments are charged more than once");
    assert!(twice >= KILLS, "only {twice}");
}

/// Charges the payments in processes that are killed one after the other. Each has a group of its own
/// and starts at the first record, so that none waits until the brokers miss its predecessor.
fn charge(kafka: &KafkaServer, key: &str, seed: u64) -> Payments {
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new().unwrap();
    let redis = RedisServer::start().unwrap();
    let provider = Provider::start();
    let start = |number: usize| {
        let group = format!("{key}-{number}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_charger"));
        command.args([&*kafka.bootstrap(), &group, TOPIC, &redis.url()]);
        command.args([&*provider.address().to_string(), key]);
        let log = folder.path().join(format!("log-{number}"));
        (Process::spawn(&command, log).unwrap(), group)
    };
    for number in 0..KILLS {
        provider.hold_response_after(rng.usize(..60));
        let (mut process, _) = start(number);
        let is_held = || provider.holds_response().then_some(());
        eventually(TIMEOUT, is_held).unwrap_or_else(|| panic!("{}", process.log().unwrap()));
        process.kill().unwrap();
    }
    let (mut process, group) = start(KILLS);
    group::wait_until_committed(&kafka.consumer_config(&group), TOPIC, PARTITIONS, TIMEOUT);
    let status = process.terminate().unwrap();
    assert!(status.success(), "{status}: {}", process.log().unwrap());
    provider.payments()
}
