//! The payment provider is away for a while.

use std::process::Command;
use std::thread;
use std::time::Duration;

use campanile::lock::Clock;
use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use tempfile::TempDir;

use crate::group::wait_until_committed;
use crate::length::env_or;
use crate::provider::Provider;

const PARTITIONS: i32 = 6;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The number of payments that are charged at the same time, as in the program.
const IN_FLIGHT: usize = 32;

struct Plan {
    payments: usize,
    away: Duration,
    kills: usize,
}

#[test]
fn unavailable_provider_counts_no_attempt_and_gives_up_no_payment() {
    let payments = env_or("CAMPANILE_CHARGE_OUTAGE_PAYMENTS", 1_000) as usize;
    let away = Duration::from_secs(env_or("CAMPANILE_CHARGE_OUTAGE_SECONDS", 4));
    let kills = env_or("CAMPANILE_CHARGE_OUTAGE_KILLS", 1) as usize;
    let kafka = KafkaServer::start().unwrap();
    let run = |order: &str, kills: usize| run(&kafka, order, &Plan { payments, away, kills });
    thread::scope(|scope| {
        for order in ["partition", "key", "none"] {
            scope.spawn(move || {
                run(order, 0);
                run(order, kills);
            });
        }
    });
}

/// Charges the payments in a process, which is killed and started again while the provider is away.
fn run(kafka: &KafkaServer, order: &str, plan: &Plan) {
    let Plan { payments, away, kills } = *plan;
    let topic = format!("payments-{order}-{kills}");
    kafka.create_topic(&topic, PARTITIONS, &[]).unwrap();
    let message = |number| {
        let (id, partition) = (format!("p-{number}"), number as i32 % PARTITIONS);
        Message::to(&topic).partition(partition).key(id.clone()).payload(id)
    };
    kafka.producer().produce_all((0..payments).map(message)).unwrap();
    let folder = TempDir::new().unwrap();
    let redis = RedisServer::start().unwrap();
    let provider = Provider::start();
    // A process that is killed counts an attempt of what it has in flight, and nothing else does. A record for
    // which no attempt is left stops the consumer.
    let attempts = (1 + kills).to_string();
    // Each has a group of its own and starts at the first record, so that none waits until the brokers miss its
    // predecessor.
    let start = |number: usize| {
        let group = format!("{topic}-{number}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_charger"));
        command.args([&*kafka.bootstrap(), &group, &topic, &redis.url()]);
        command.args([&*provider.address().to_string(), "derived", order, &attempts, "6"]);
        (Process::spawn(&command, folder.path().join(format!("log-{number}"))).unwrap(), group)
    };
    let wait_for = |process: &Process, what: &str, condition: &dyn Fn() -> bool| {
        eventually(TIMEOUT, || condition().then_some(())).unwrap_or_else(|| {
            panic!("{order}, {kills} kills: {what}: {}", process.log().unwrap())
        });
    };

    let (mut process, mut group) = start(0);
    let charged = || provider.payments().len();
    wait_for(&process, "some are charged", &|| charged() > payments / 10);
    provider.go_away();
    let clock = Clock::boot();
    let left = clock.now();
    for number in 1..=kills {
        let before = provider.refused();
        wait_for(&process, "the provider is called", &|| provider.refused() > before);
        process.kill().unwrap();
        (process, group) = start(number);
    }
    wait_for(&process, "the provider is called", &|| provider.refused() > 0);
    thread::sleep(away.saturating_sub(clock.now() - left));
    let (left, waiting) = (clock.now() - left, payments - charged());
    provider.respond();
    let back = clock.now();
    wait_for(&process, "all are charged", &|| charged() == payments);
    let took = clock.now() - back;
    wait_until_committed(&kafka.consumer_config(&group), &topic, PARTITIONS, TIMEOUT);
    let status = process.terminate().unwrap();
    assert!(status.success(), "{status}: {}", process.log().unwrap());

    let refused = provider.refused();
    println!(
        "{order}, away for {left:.1?} with {kills} kills: {refused} calls meanwhile; {waiting} payments \
         charged {took:.1?} after that"
    );
    let wrong: Vec<_> = provider.payments().into_iter().filter(|(_, it)| it.charges != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // What is in flight when a process notices the outage, and then one probe at a time: at most six within 5 s, and
    // then one each two seconds.
    let limit = (IN_FLIGHT + 6) * (1 + kills) + left.as_secs() as usize / 2;
    assert!(refused <= limit, "{refused} calls, not {limit}, while the provider is away");
}
