//! The payments of a group, produced while everything fails.

use std::mem;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use campanile_test::Producer;
use campanile_test::history::{HistoryRecorder, Order};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::PARTITIONS;
use crate::faults::Faults;
use crate::history::{Payment, produce, try_produce};
use crate::scenario::{Kind, Program, cents, key};
use crate::topic::{SharedTopic, Topic};

/// Record keys, each of which belongs to one partition.
const ACCOUNTS: usize = 1_000;

/// The pause between two batches.
const INTERVAL: Duration = Duration::from_millis(100);

/// How many records a group may be behind before its producer waits.
const MAX_LAG: usize = 2_000;

/// The pause between two lookups of what a group has committed, and the limit of one.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// Produces payments until the campaign is over: at most `rate` per second, and none while the group is
/// far behind. Returns the number of keys.
pub(crate) fn run(
    kind: &Kind,
    bootstrap: &str,
    topic: &SharedTopic,
    recorder: &HistoryRecorder,
    rate: f64,
    faults: &Faults,
    mut rng: fastrand::Rng,
) -> usize {
    let mut producer = Producer::new(bootstrap).unwrap();
    let mut group = Group::new(kind, bootstrap);
    let (mut keys, mut due, mut known) = (0, 0.0, (1, PARTITIONS));
    while !faults.is_over() {
        thread::sleep(INTERVAL);
        let mut topic = topic.lock();
        let burst = mem::take(&mut topic.burst);
        let committed = group.committed(topic.partitions, recorder.now());
        if burst == 0 && topic.records > committed + MAX_LAG {
            continue;
        }
        let current = (topic.generation(), topic.partitions);
        if mem::replace(&mut known, current) != current {
            // The other one knows the topic that was deleted, or has not heard of the new partitions.
            producer = Producer::new(bootstrap).unwrap();
        }
        due += rate * INTERVAL.as_secs_f64();
        let batch = due as usize;
        due -= batch as f64;
        let batch = batch + burst;
        let payments: Vec<_> = (0..batch)
            .map(|_| {
                // One in twenty repeats the key of another, half of these in any partition.
                let number = if keys > 0 && rng.u8(..20) == 0 { rng.usize(..keys) } else { keys };
                let is_repeat = number < keys;
                keys = keys.max(number + 1);
                let any = is_repeat && rng.bool();
                let account = if any { rng.usize(..ACCOUNTS) } else { number % ACCOUNTS };
                // One payment in a hundred takes so long that faults hit it, and its lock is renewed.
                let work_ms = if rng.u8(..100) == 0 { rng.u64(500..5_000) } else { rng.u64(1..8) };
                payment(kind, &topic, number, account, work_ms)
            })
            .collect();
        let name = topic.name();
        if let Err(error) = try_produce(recorder, &producer, name, payments.clone()) {
            // A client that a restarting broker has answered may never connect again:
            // https://github.com/confluentinc/librdkafka/issues/5301
            println!("{name}: {error}; continuing with another producer");
            producer = Producer::new(bootstrap).unwrap();
            produce(recorder, &producer, name, payments);
        }
        topic.records += batch;
        faults.records.fetch_add(batch, Ordering::Relaxed);
    }
    keys
}

/// How far a group has got with its payments.
struct Group {
    consumer: BaseConsumer,
    topic: String,
    committed: usize,
    /// In the time of the history, in microseconds.
    looked_up: u64,
}

impl Group {
    fn new(kind: &Kind, bootstrap: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", kind.topic());
        let consumer = config.create().unwrap();
        Self { consumer, topic: kind.topic(), committed: 0, looked_up: 0 }
    }

    /// The number of records that the group had committed about a second ago, or when the broker
    /// answered last.
    fn committed(&mut self, partitions: i32, now: u64) -> usize {
        if now >= self.looked_up + LAG_INTERVAL.as_micros() as u64 {
            let mut list = TopicPartitionList::new();
            list.add_partition_range(&self.topic, 0, partitions - 1);
            let found = self.consumer.committed_offsets(list, LAG_INTERVAL);
            if let Ok(found) = found {
                let offsets = found.elements().into_iter().map(|it| match it.offset() {
                    Offset::Offset(offset) => usize::try_from(offset).unwrap_or_default(),
                    _ => 0,
                });
                self.committed = offsets.sum();
            }
            self.looked_up = now;
        }
        self.committed
    }
}

fn payment(kind: &Kind, topic: &Topic, number: usize, account: usize, work_ms: u64) -> Payment {
    let (id, account_key) = (key(number), format!("a-{account}"));
    let payload = match kind.program {
        Program::Worker => {
            // One payment in some twenty fails at first, and one in some hundreds always, in all
            // partitions.
            let failures = match number {
                _ if number % 401 == 7 => u32::MAX,
                _ if number % 21 == 3 => 1 + number as u32 / 21 % 2,
                _ => 0,
            };
            serde_json::json!({ "id": id, "work_ms": work_ms, "failures": failures }).to_string()
        }
        Program::Booker => {
            let account = number % ACCOUNTS;
            serde_json::json!({ "id": id, "account": account, "cents": cents(number) }).to_string()
        }
        Program::Biller => id.clone(),
    };
    let message = topic.message().partition(account as i32 % topic.partitions);
    let order = (kind.order == Order::Key).then(|| account_key.clone());
    (message.key(account_key).payload(payload), id, order)
}
