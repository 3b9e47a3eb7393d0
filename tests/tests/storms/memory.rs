//! The memory usage of a consumer while its Redis hangs and records keep arriving.

use std::thread;
use std::time::Duration;

use campanile_test::{Message, RedisServer, eventually};
use tempfile::TempDir;

use crate::resident::{BUDGET, MOST, Memory};
use crate::{KAFKA, group, setting, worker};

const TOPIC: &str = "backlog";
const PARTITIONS: i32 = 60;
const LONG: Duration = Duration::from_secs(300);

/// How long a stall is observed. A longer time only makes the test stricter.
const WATCHED: Duration = Duration::from_secs(3);

/// The default backlog, in MiB.
const BACKLOG: u64 = 128;
const RECORD: usize = 10 * 1024;

#[test]
fn memory_is_bounded_while_redis_hangs_and_the_backlog_grows() {
    let mut redis = RedisServer::start().unwrap();
    KAFKA.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let folder = TempDir::new().unwrap();
    let mut worker =
        worker::spawn(&KAFKA.bootstrap(), TOPIC, TOPIC, &redis, &folder, worker::SOON_MISSED);
    let settings = KAFKA.consumer_config(TOPIC);
    let until_all_is_committed = || group::wait_for_end(&settings, TOPIC, PARTITIONS, LONG);

    produce("first", PARTITIONS as u64, 0);
    until_all_is_committed();
    let idle = Memory::of(&worker);
    redis.pause().unwrap();
    let mib = setting("CAMPANILE_STORM_BACKLOG_MIB").unwrap_or(BACKLOG);
    let records = (mib << 20) / RECORD as u64;
    produce("later", records, RECORD);
    thread::sleep(WATCHED);
    let filled = Memory::of(&worker);
    redis.resume().unwrap();
    // Pauses Redis again while the consumer processes the backlog.
    let half = || redis.cli(&["DBSIZE"]).unwrap().parse::<u64>().unwrap() > records / 2;
    eventually(LONG, || half().then_some(())).expect("half of the records are processed");
    redis.pause().unwrap();
    thread::sleep(WATCHED);
    redis.resume().unwrap();
    until_all_is_committed();
    let peak = Memory::of(&worker).peak;
    let status = worker.terminate().unwrap();
    assert!(status.success(), "{status}: {}", worker.log().unwrap());

    println!(
        "memory: {records} records, {mib} MiB: {} MiB resident when idle, {} in a stall, {peak} at most",
        idle.now, filled.now
    );
    let bound = idle.now + MOST;
    // The consumer has fetched most of what its budget allows.
    assert!(filled.now >= idle.now + BUDGET / 2);
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
