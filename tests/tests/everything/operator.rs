//! What the operator of the brokers does to the topic of a group and to its clients.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use campanile_test::history::FaultKind;
use campanile_test::{KafkaAdmin, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::faults::Injector;
use crate::scenario::Kind;
use crate::topic::SharedTopic;
use crate::{MAX_PARTITIONS, PARTITIONS, TIMEOUT, broker};

/// The pauses between two changes, in milliseconds.
const PAUSE: Range<u64> = 15_000..60_000;

/// The most records that are sent at once.
const MAX_BURST: usize = 800;

/// How long the settings of a topic and of clients differ, in milliseconds.
const CHANGED: Range<u64> = 500..5_000;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long consumers may not know that a topic was recreated, also if they were suspended for a moment, or
/// the broker was down.
const UNKNOWN: Duration = Duration::from_secs(15);

pub(crate) const RECREATED: &str = "topic recreated";
pub(crate) const ADDED: &str = "partitions added";
pub(crate) const DELETED: &str = "records deleted";
pub(crate) const RETENTION: &str = "retention shortened";
pub(crate) const QUOTA: &str = "quota set";

struct Operator<'a, 'i> {
    kind: &'a Kind,
    admin: KafkaAdmin,
    topic: &'a SharedTopic,
    injector: Injector<'i>,
}

/// Changes a topic until the campaign is over.
pub(crate) fn inject_faults(
    kind: &Kind,
    bootstrap: &str,
    topic: &SharedTopic,
    injector: Injector<'_>,
) {
    let faults = injector.faults;
    let mut operator = Operator { kind, admin: KafkaAdmin::new(bootstrap), topic, injector };
    operator.topic.lock().set_id(&operator.topic_id());
    let changes = [RECREATED, DELETED, RETENTION, ADDED, QUOTA];
    let changes: Vec<_> = changes.into_iter().filter(|change| faults.allows(change)).collect();
    while operator.injector.pause(PAUSE) {
        match operator.injector.rng.choice(&changes).copied() {
            Some(RECREATED) => operator.recreate(),
            Some(ADDED) => operator.add_partitions(),
            Some(DELETED) => operator.delete_records(),
            Some(RETENTION) => operator.shorten_retention(),
            Some(QUOTA) => operator.set_quota(),
            _ => {}
        }
    }
}

impl Operator<'_, '_> {
    /// Deletes the topic and creates it again, in half of the cases with as many records at once.
    fn recreate(&mut self) {
        let name = self.kind.topic();
        let absent = match self.injector.rng.bool() {
            true => Duration::ZERO,
            false => self.injector.millis(0..3_000),
        };
        let is_refilled = self.injector.rng.bool();
        let mut topic = self.topic.lock();
        self.injector.faults.count(RECREATED);
        let from = self.injector.now();
        for partition in 0..topic.partitions {
            self.recorder().deleted(from, topic.name(), partition, i64::MAX);
        }
        self.admin.delete_topic(&name).unwrap();
        thread::sleep(absent);
        // The broker refuses commits until then.
        let before = topic.records;
        let created = self.injector.now();
        topic.recreate(created, PARTITIONS);
        self.admin.create_topic(&name, PARTITIONS, &[]).unwrap();
        // They check the id of the topic before each commit and every 5 s.
        self.injector.record(created, UNKNOWN, &FaultKind::TopicRecreated);
        topic.set_id(&self.topic_id());
        // Twice as many, so that most partitions are longer than they were.
        topic.burst = if is_refilled { (2 * before).min(MAX_BURST) } else { 0 };
        println!(
            "{name}: deleted at {from} with {before} records, created as {} with {}",
            topic.name(),
            topic.burst
        );
    }

    fn add_partitions(&mut self) {
        let count = self.injector.rng.i32(1..4);
        let mut topic = self.topic.lock();
        let total = topic.partitions + count;
        if total <= MAX_PARTITIONS {
            self.injector.faults.count(ADDED);
            self.admin.add_partitions(&self.kind.topic(), total).unwrap();
            topic.partitions = total;
        }
    }

    /// Deletes the first records of some partitions, or all of them, and in half of the cases just after
    /// many were sent.
    fn delete_records(&mut self) {
        self.injector.faults.count(DELETED);
        if self.injector.rng.bool() {
            self.topic.lock().burst = MAX_BURST / 2;
            // The broker may be down.
            let is_sent = || (self.topic.lock().burst == 0).then_some(());
            eventually(TIMEOUT, is_sent).expect("the records are sent");
        }
        let (name, partitions) = (self.kind.topic(), self.topic.lock().partitions);
        for partition in 0..partitions {
            if self.injector.rng.u8(..3) == 0 {
                continue;
            }
            let (low, high) = self.admin.watermarks(&name, partition).unwrap();
            let below =
                if self.injector.rng.bool() { high } else { self.injector.rng.i64(low..=high) };
            let from = self.injector.now();
            self.recorder().deleted(from, self.topic.lock().name(), partition, below);
            self.admin.delete_records(&name, partition, below).unwrap();
        }
    }

    /// Lets the broker delete what is older than a moment.
    fn shorten_retention(&mut self) {
        self.injector.faults.count(RETENTION);
        let (name, from) = (self.kind.topic(), self.injector.now());
        let retention = self.injector.rng.u64(1..2_000).to_string();
        self.admin.set_topic_config(&name, &[("retention.ms", &retention)]).unwrap();
        self.injector.sleep(CHANGED);
        self.admin.set_topic_config(&name, &[]).unwrap();
        // The broker may be at it.
        thread::sleep(broker::RETENTION_INTERVAL * 3);
        let topic = self.topic.lock();
        for partition in 0..topic.partitions {
            let (low, _) = self.admin.watermarks(&name, partition).unwrap();
            if low > 0 {
                self.recorder().deleted(from, topic.name(), partition, low);
            }
        }
    }

    /// Limits what the broker does for the group's clients.
    fn set_quota(&mut self) {
        self.injector.faults.count(QUOTA);
        // Rates of bytes are integers. A client with a very low one waits for minutes after a large response,
        // also if the quota is removed meanwhile.
        let (quota, value) = match self.injector.rng.u8(..3) {
            0 => ("consumer_byte_rate", self.injector.rng.u32(2_000..50_000).into()),
            1 => ("producer_byte_rate", self.injector.rng.u32(2_000..50_000).into()),
            _ => ("request_percentage", 2.0 * self.injector.rng.f64()),
        };
        self.admin.set_quota(self.kind.name, quota, Some(value)).unwrap();
        self.injector.sleep(CHANGED.start..4 * CHANGED.end);
        self.admin.set_quota(self.kind.name, quota, None).unwrap();
    }

    fn topic_id(&self) -> String {
        let name = self.kind.topic();
        let id = || {
            let client: BaseConsumer = self.admin.config().create().unwrap();
            campanile_kafka::topic_id(client.client(), &name, REQUEST_TIMEOUT).ok()
        };
        let id = eventually(TIMEOUT, id).expect("the broker answers");
        id.expect("the broker has ids").to_string()
    }

    fn recorder(&self) -> &campanile_test::history::HistoryRecorder {
        &self.injector.recorders[0]
    }
}
