//! The memory usage of a consumer while its handlers stall and large records keep arriving.

use std::thread;
use std::time::Duration;

use campanile_test::{Message, Process, RedisServer, eventually};
use tempfile::TempDir;

use crate::history::{History, Run};
use crate::resident::{BUDGET, MOST, Memory};
use crate::{KAFKA, setting, worker};

const TOPIC: &str = "large";
const PARTITIONS: i32 = 32;
const SOON: Duration = Duration::from_secs(60);
/// How long a stall is observed; shorter than a handler may take.
const WATCHED: Duration = Duration::from_secs(4);
const STALL_MS: u64 = 3_600_000;

/// The default backlog, in MiB.
const BACKLOG: u64 = 128;
const RECORD: usize = 100 * 1024;

/// A consumer in its own group.
struct Stalled {
    order: &'static str,
    worker: Process,
    folder: TempDir,
    _redis: RedisServer,
}

#[test]
fn memory_is_bounded_while_handlers_stall_before_a_backlog_of_large_records() {
    KAFKA.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let consumers = ["order=partition", "order=key"].map(Stalled::start);
    produce(PARTITIONS as u64, 1, 0);
    let idle = consumers.each_ref().map(Stalled::until_idle);
    let mib = setting("CAMPANILE_REBALANCE_BACKLOG_MIB", BACKLOG);
    produce((mib << 20) / RECORD as u64, STALL_MS, RECORD);
    consumers.iter().for_each(Stalled::until_stalled);
    thread::sleep(WATCHED);
    for (consumer, idle) in consumers.iter().zip(idle) {
        let filled = Memory::of(&consumer.worker);
        println!(
            "memory, {}: {mib} MiB of records of 100 KiB: {} MiB resident when idle, {} in the \
             stall, {} at most",
            consumer.order, idle.now, filled.now, filled.peak
        );
        let bound = idle.now + MOST;
        // The consumer has fetched most of what its budget allows.
        assert!(filled.now >= idle.now + BUDGET / 2);
        assert!(filled.peak <= bound, "expected at most {bound} MiB, got {}", filled.peak);
    }
}

impl Stalled {
    fn start(order: &'static str) -> Self {
        let (redis, folder) = (RedisServer::start().unwrap(), TempDir::new().unwrap());
        let (bootstrap, group) = (KAFKA.bootstrap(), format!("{TOPIC}-{order}"));
        let worker = worker::spawn(&bootstrap, &group, TOPIC, &redis, &folder, &[order]);
        Self { order, worker, folder, _redis: redis }
    }

    /// Waits until the first record of each partition is processed.
    fn until_idle(&self) -> Memory {
        let processed = || self.runs().iter().filter(|run| run.is_processed()).count();
        let all = || (processed() == PARTITIONS as usize).then_some(());
        eventually(SOON, all).expect("the first records are processed");
        Memory::of(&self.worker)
    }

    fn until_stalled(&self) {
        let stalls = || self.runs().iter().any(|run| run.over().is_none()).then_some(());
        eventually(SOON, stalls).expect("a handler stalls");
    }

    fn runs(&self) -> Vec<Run> {
        let history = History::of(&worker::ledgers(&self.folder), self.worker.pid());
        history.runs.into_values().flatten().collect()
    }
}

/// Produces records with unique keys, in all partitions.
fn produce(records: u64, work_ms: u64, bytes: usize) {
    let padding = "x".repeat(bytes);
    let messages = (0..records).zip((0..PARTITIONS).cycle()).map(|(n, partition)| {
        let key = format!("{bytes}-{n}");
        let payload = serde_json::json!({ "id": key, "work_ms": work_ms, "padding": padding });
        Message::to(TOPIC).partition(partition).key(key).payload(payload.to_string())
    });
    KAFKA.producer().produce_all(messages).unwrap();
}
