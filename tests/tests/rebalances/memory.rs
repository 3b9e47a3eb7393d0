//! The memory usage of a consumer while its handlers stall and large records keep arriving.

use std::thread;
use std::time::Duration;

use campanile_test::history::Order;
use campanile_test::{Message, RedisServer, eventually};

use crate::history::TestHistory;
use crate::resident_memory::{BUDGET_MIB, MAX_INCREASE_MIB, ResidentMemory};
use crate::worker::Worker;
use crate::{KAFKA, env_or};

const PARTITIONS: i32 = 32;
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a stall is observed; shorter than a handler may take.
const OBSERVATION_TIME: Duration = Duration::from_secs(4);
const STALL_MS: u64 = 3_600_000;

/// The default backlog, in MiB.
const DEFAULT_BACKLOG_MIB: u64 = 128;

/// With batches of 1 MiB instead of 512 KiB, of which each of librdkafka's sixteen queues prefetches one.
const MAX_INCREASE_OF_LARGEST_MIB: u64 = MAX_INCREASE_MIB + 16 / 2;

/// A consumer in its own group.
struct StalledConsumer {
    order: &'static str,
    worker: Worker,
    history: TestHistory,
    _redis: RedisServer,
}

#[test]
fn memory_is_bounded_while_handlers_stall_on_large_backlog() {
    check("large", 100, MAX_INCREASE_MIB);
}

/// Each record is a batch. librdkafka produces no larger ones by default.
#[test]
fn memory_is_bounded_while_handlers_stall_on_largest_records() {
    check("largest", 970, MAX_INCREASE_OF_LARGEST_MIB);
}

fn check(topic: &str, record_kib: usize, max_increase_mib: u64) {
    KAFKA.create_topic(topic, PARTITIONS, &[]).unwrap();
    let consumers =
        ["order=partition", "order=key"].map(|order| StalledConsumer::start(topic, order));
    produce(topic, PARTITIONS as u64, 1, 0);
    let idle = consumers.each_ref().map(StalledConsumer::wait_until_idle);
    let mib = env_or("CAMPANILE_REBALANCE_BACKLOG_MIB", DEFAULT_BACKLOG_MIB);
    produce(topic, (mib << 10) / record_kib as u64, STALL_MS, record_kib << 10);
    consumers.iter().for_each(StalledConsumer::wait_until_stalled);
    for (consumer, idle) in consumers.iter().zip(&idle) {
        consumer.wait_until_filled(idle);
    }
    thread::sleep(OBSERVATION_TIME);
    for (consumer, idle) in consumers.iter().zip(idle) {
        let filled = ResidentMemory::of(consumer.worker.process());
        println!(
            "memory, {}: {mib} MiB of records of {record_kib} KiB: {} MiB resident when idle, {} in \
             the stall, {} at most",
            consumer.order, idle.current, filled.current, filled.peak
        );
        let bound = idle.current + max_increase_mib;
        assert!(filled.peak <= bound, "expected at most {bound} MiB, got {}", filled.peak);
    }
}

impl StalledConsumer {
    fn start(topic: &str, order: &'static str) -> Self {
        let redis = RedisServer::start().unwrap();
        // Only read while it is recorded: its records are never finished.
        let history = TestHistory::new(Order::None, Duration::from_secs(5));
        let (bootstrap, group) = (KAFKA.bootstrap(), format!("{topic}-{order}"));
        let worker = Worker::spawn(&bootstrap, &group, topic, &redis.url(), &history, &[order]);
        Self { order, worker, history, _redis: redis }
    }

    /// Waits until the first record of each partition is processed.
    fn wait_until_idle(&self) -> ResidentMemory {
        let all = || (self.history.progress().answered() == PARTITIONS as usize).then_some(());
        eventually(TIMEOUT, all).expect("the first records are processed");
        ResidentMemory::of(self.worker.process())
    }

    fn wait_until_stalled(&self) {
        let stalls = || self.history.progress().runs().iter().any(|run| run.end.is_none());
        eventually(TIMEOUT, || stalls().then_some(())).expect("a handler stalls");
    }

    /// Waits until the consumer has fetched most of what its budget allows.
    fn wait_until_filled(&self, idle: &ResidentMemory) {
        let current = || ResidentMemory::of(self.worker.process()).current;
        let is_filled = || (current() >= idle.current + BUDGET_MIB / 2).then_some(());
        eventually(TIMEOUT, is_filled).expect("the consumer fetches what its budget allows");
    }
}

/// Produces records with unique keys, in all partitions.
fn produce(topic: &str, records: u64, work_ms: u64, bytes: usize) {
    let padding = "x".repeat(bytes);
    let messages = (0..records).zip((0..PARTITIONS).cycle()).map(|(n, partition)| {
        let key = format!("{bytes}-{n}");
        let payload = serde_json::json!({ "id": key, "work_ms": work_ms, "padding": padding });
        Message::to(topic).partition(partition).key(key).payload(payload.to_string())
    });
    KAFKA.producer().produce_all(messages).unwrap();
}
