//! The memory usage of a consumer while its Redis hangs and records keep arriving.

use std::thread;
use std::time::Duration;

use campanile_test::history::Order;
use campanile_test::{Message, RedisServer, eventually};

use crate::history::TestHistory;
use crate::resident_memory::{BUDGET_MIB, MAX_INCREASE_MIB, ResidentMemory};
use crate::worker::{self, Worker};
use crate::{KAFKA, env_u64, group};

const TOPIC: &str = "backlog";
const PARTITIONS: i32 = 60;
const TIMEOUT: Duration = Duration::from_secs(300);

/// How long a stall is observed. A longer time only makes the test stricter.
const OBSERVATION_TIME: Duration = Duration::from_secs(3);

/// The default backlog, in MiB.
const DEFAULT_BACKLOG_MIB: u64 = 128;
const RECORD_BYTES: usize = 10 * 1024;

#[test]
fn memory_is_bounded_while_redis_hangs_and_backlog_grows() {
    let mut redis = RedisServer::start().unwrap();
    KAFKA.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    // Not judged: what matters is the memory.
    let history = TestHistory::new(Order::Partition, Duration::from_secs(5));
    let (bootstrap, url) = (KAFKA.bootstrap(), redis.url());
    let worker = Worker::spawn(&bootstrap, TOPIC, TOPIC, &url, &history, worker::SHORT_SESSION);
    let settings = KAFKA.consumer_config(TOPIC);
    let wait_until_all_committed =
        || group::wait_until_committed(&settings, TOPIC, PARTITIONS, TIMEOUT);

    produce("first", PARTITIONS as u64, 0);
    wait_until_all_committed();
    let idle = ResidentMemory::of(worker.process());
    redis.pause().unwrap();
    let mib = env_u64("CAMPANILE_STORM_BACKLOG_MIB").unwrap_or(DEFAULT_BACKLOG_MIB);
    let records = (mib << 20) / RECORD_BYTES as u64;
    produce("later", records, RECORD_BYTES);
    let current = || ResidentMemory::of(worker.process()).current;
    // The consumer fetches most of what its budget allows.
    let is_filled = || (current() >= idle.current + BUDGET_MIB / 2).then_some(());
    eventually(TIMEOUT, is_filled).expect("the consumer fetches what its budget allows");
    thread::sleep(OBSERVATION_TIME);
    let filled = ResidentMemory::of(worker.process());
    redis.resume().unwrap();
    // Pauses Redis again while the consumer processes the backlog.
    let half_is_processed =
        || redis.cli(&["DBSIZE"]).unwrap().parse::<u64>().unwrap() > records / 2;
    eventually(TIMEOUT, || half_is_processed().then_some(()))
        .expect("half of the records are processed");
    redis.pause().unwrap();
    thread::sleep(OBSERVATION_TIME);
    redis.resume().unwrap();
    wait_until_all_committed();
    let peak = ResidentMemory::of(worker.process()).peak;
    worker.stop();

    println!(
        "memory: {records} records, {mib} MiB: {} MiB resident when idle, {} in a stall, {peak} at most",
        idle.current, filled.current
    );
    let bound = idle.current + MAX_INCREASE_MIB;
    assert!(peak <= bound, "expected at most {bound} MiB, got {peak}");
}

/// Produces records with unique keys, in all partitions.
fn produce(name: &str, records: u64, bytes: usize) {
    let padding = "x".repeat(bytes);
    let messages = (0..records).zip((0..PARTITIONS).cycle()).map(|(n, partition)| {
        let key = format!("{name}-{n}");
        let payload = serde_json::json!({ "id": key, "padding": padding }).to_string();
        Message::to(TOPIC).partition(partition).key(key).payload(payload)
    });
    KAFKA.producer().produce_all(messages).unwrap();
}
