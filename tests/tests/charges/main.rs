//! Processes are killed after their call to a payment provider and before they have recorded it. The
//! provider recognizes the `Idempotency-Key` of a call. In another test, it is away for a while.
//!
//! Each test prints one line for a run. `CAMPANILE_CHARGE_PAYMENTS` and `_KILLS` make the first longer,
//! `CAMPANILE_CHARGE_OUTAGE_PAYMENTS`, `_SECONDS` and `_KILLS` the other.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
#[path = "../support/length.rs"]
mod length;
mod outage;
mod provider;

use std::process::Command;
use std::time::Duration;

use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use tempfile::TempDir;

use length::env_or;
use provider::{Payments, Provider};

const TOPIC: &str = "payments";
const PARTITIONS: i32 = 4;
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn killed_processes_charge_once_by_derived_keys() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let payments = env_or("CAMPANILE_CHARGE_PAYMENTS", 500) as usize;
    let kills = env_or("CAMPANILE_CHARGE_KILLS", 6) as usize;
    let plan = Plan { payments, kills, seed };
    let kafka = KafkaServer::start().unwrap();
    kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    // One in ten payments is sent twice.
    let numbers = (0..payments).chain((0..payments).step_by(10));
    let message = |number| {
        let message = Message::to(TOPIC).partition(number as i32 % PARTITIONS);
        message.payload(format!("p-{number}"))
    };
    kafka.producer().produce_all(numbers.map(message)).unwrap();

    let charged = charge(&kafka, "derived", &plan);
    assert_eq!(charged.len(), payments);
    let wrong: Vec<_> = charged.iter().filter(|(_, payment)| payment.charges != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let calls: usize = charged.values().map(|payment| payment.calls).sum();
    assert!(calls >= payments + kills, "only {calls} calls");

    // The same with a key for each attempt, so that the test is able to fail.
    let charged = charge(&kafka, "token", &plan);
    let twice = charged.values().filter(|payment| payment.charges > 1).count();
    println!(
        "{payments} payments, {kills} kills, {calls} calls: all charged once; without derived keys, \
         {twice} are charged more than once"
    );
    assert!(twice >= kills, "only {twice}");
}

struct Plan {
    payments: usize,
    kills: usize,
    seed: u64,
}

/// Charges the payments in processes that are killed one after the other. Each has a group of its own
/// and starts at the first record, so that none waits until the brokers miss its predecessor.
fn charge(kafka: &KafkaServer, key: &str, plan: &Plan) -> Payments {
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    // Payments are left to charge at the last kill.
    let charges_per_kill = plan.payments * 3 / 4 / plan.kills;
    let folder = TempDir::new().unwrap();
    let redis = RedisServer::start().unwrap();
    let provider = Provider::start();
    let start = |number: usize| {
        let group = format!("{key}-{number}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_charger"));
        command.args([&*kafka.bootstrap(), &group, TOPIC, &redis.url()]);
        command.args([&*provider.address().to_string(), key, "none"]);
        // Enough attempts for a key that the kills hit again and again; and locks that expire soon after.
        command.args(["1000", "2"]);
        let log = folder.path().join(format!("log-{number}"));
        (Process::spawn(&command, log).unwrap(), group)
    };
    for number in 0..plan.kills {
        provider.hold_response_after(rng.usize(..charges_per_kill));
        let (mut process, _) = start(number);
        let is_held = || provider.holds_response().then_some(());
        eventually(TIMEOUT, is_held).unwrap_or_else(|| panic!("{}", process.log().unwrap()));
        process.kill().unwrap();
    }
    provider.respond();
    let (mut process, group) = start(plan.kills);
    group::wait_until_committed(&kafka.consumer_config(&group), TOPIC, PARTITIONS, TIMEOUT);
    let status = process.terminate().unwrap();
    assert!(status.success(), "{status}: {}", process.log().unwrap());
    provider.payments()
}
