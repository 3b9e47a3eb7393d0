//! The history of a simulation, and the guarantees that are checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::time::Instant;

/// The partition and offset of a record of the simulated topic.
pub(crate) type RecordId = (i32, i64);

/// The events of a simulation so far.
pub(crate) struct History {
    hasher: DefaultHasher,
    start: Instant,
    /// Attempts in flight, each with the key of its queue.
    running: BTreeMap<RecordId, String>,
    /// The offsets delivered to each queue since its partition was assigned, and the index of the
    /// offset that was started last. After a reset an offset occurs again.
    delivered: BTreeMap<(i32, String), (Vec<i64>, usize)>,
    /// The record of each queue that was started last, until the service answers `Ok`.
    unanswered: BTreeMap<(i32, String), i64>,
    /// Processed records.
    processed: BTreeSet<RecordId>,
    /// The partitions that this consumer may process.
    owned: BTreeSet<i32>,
    /// When a partition went to another member without notice. The consumer can know it after that instant.
    overtaken: BTreeMap<i32, Instant>,
    /// The calls of the dependency that is down, if one is.
    calls: Option<CallsWhileDown>,
    /// Whether records are processed in order within a partition, not only within a key.
    by_partition: bool,
    max_in_flight: usize,
    /// The first guarantee that the start of a handler violated.
    pub(crate) violation: Option<String>,
    pub(crate) attempts: u64,
    pub(crate) revokes: u64,
    pub(crate) overtakes: u64,
    pub(crate) resets: u64,
    pub(crate) seeks: u64,
    pub(crate) outages: u64,
}

/// The calls of a dependency while it is down.
struct CallsWhileDown {
    since: Instant,
    count: u64,
    /// The records that have called it.
    records: BTreeSet<RecordId>,
    /// The number of times that a partition came or went, or that the consumer was started, since.
    interruptions: u64,
}

impl History {
    pub(crate) fn new(by_partition: bool, max_in_flight: usize) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            start: Instant::now(),
            running: BTreeMap::new(),
            delivered: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            processed: BTreeSet::new(),
            owned: BTreeSet::new(),
            overtaken: BTreeMap::new(),
            calls: None,
            by_partition,
            max_in_flight,
            violation: None,
            attempts: 0,
            revokes: 0,
            overtakes: 0,
            resets: 0,
            seeks: 0,
            outages: 0,
        }
    }

    /// Hashes all events, their order and their times.
    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub(crate) fn finished(&self) -> u64 {
        self.processed.len() as u64
    }

    fn log_event(&mut self, what: &str, at: impl Hash) {
        what.hash(&mut self.hasher);
        at.hash(&mut self.hasher);
        self.start.elapsed().hash(&mut self.hasher);
    }

    /// Notes that the dependency of the handlers goes down.
    pub(crate) fn dependency_down(&mut self) {
        self.log_event("down", ());
        self.outages += 1;
        let (since, records) = (Instant::now(), BTreeSet::new());
        self.calls = Some(CallsWhileDown { since, count: 0, records, interruptions: 0 });
    }

    /// Notes that the dependency is back.
    pub(crate) fn dependency_up(&mut self) {
        self.log_event("up", ());
        self.calls = None;
    }

    /// Notes that a handler calls the dependency. Returns whether it is down, and checks that it is then called
    /// by what is in flight when it goes down, and by probes. A dependency with a name is called once by each
    /// record in addition.
    pub(crate) fn calls_dependency(&mut self, record_id: RecordId, is_named: bool) -> bool {
        /// The shortest pause between two probes.
        const PAUSE: u128 = 100;
        let Some(calls) = &mut self.calls else { return false };
        calls.count += 1;
        calls.records.insert(record_id);
        let probes = 2 * (1 + calls.since.elapsed().as_millis() / PAUSE) as u64;
        let in_flight = self.max_in_flight as u64 * (1 + calls.interruptions);
        let named = if is_named { calls.records.len() as u64 } else { 0 };
        let (count, limit) = (calls.count, in_flight + probes + named);
        self.check(count <= limit, || format!("{count} calls while a dependency is down"));
        true
    }

    /// Notes that the consumer is started, or that its records change.
    pub(crate) fn interrupted(&mut self) {
        self.calls.iter_mut().for_each(|calls| calls.interruptions += 1);
    }

    pub(crate) fn assigned(&mut self, partition: i32) {
        self.log_event("assigned", partition);
        self.interrupted();
        self.owned.insert(partition);
        self.delivered.retain(|(of, _), _| *of != partition);
        self.unanswered.retain(|(of, _), _| *of != partition);
    }

    /// Notes that the partition's position was moved backwards.
    pub(crate) fn reset(&mut self, partition: i32) {
        self.log_event("reset", partition);
        self.interrupted();
        self.resets += 1;
    }

    /// Notes that the partition was moved to another position by a seek.
    pub(crate) fn sought(&mut self, partition: i32) {
        self.log_event("sought", partition);
        self.interrupted();
        self.seeks += 1;
        let busy = self.running.keys().find(|(of, _)| *of == partition);
        assert!(busy.is_none(), "{busy:?} is running although its partition was sought");
    }

    /// Notes that the consumer has fetched a record.
    pub(crate) fn delivered(&mut self, (partition, offset): RecordId, key: &str) {
        let queue = (partition, self.queue_of(key));
        self.delivered.entry(queue).or_default().0.push(offset);
    }

    fn queue_of(&self, key: &str) -> String {
        if self.by_partition { String::new() } else { key.to_owned() }
    }

    /// Notes that the partition now belongs to another consumer. If it was `lost`, this consumer
    /// did not know of the change in advance.
    pub(crate) fn released(&mut self, partition: i32, lost: bool) {
        self.log_event("given up", partition);
        self.interrupted();
        self.revokes += 1;
        self.owned.remove(&partition);
        let busy = self.running.keys().find(|(of, _)| *of == partition);
        assert!(lost || busy.is_none(), "{busy:?} is running although its partition was released");
    }

    /// Notes that the partition belongs to another consumer while this one still drains it.
    pub(crate) fn overtaken(&mut self, partition: i32) {
        self.log_event("overtaken", partition);
        self.overtakes += 1;
        self.overtaken.insert(partition, Instant::now());
        self.released(partition, true);
    }

    /// Notes the start of a handler, and checks that the handler may start.
    pub(crate) fn handler_started(&mut self, record_id: RecordId, key: &str) {
        self.log_event("starts", record_id);
        self.attempts += 1;
        let (partition, offset) = record_id;
        let was_just_overtaken = self.overtaken.get(&partition) == Some(&Instant::now());
        self.check(self.owned.contains(&partition) || was_just_overtaken, || {
            format!("{record_id:?} was started after its partition was revoked")
        });
        let order = self.queue_of(key);
        let same = |((of, _), queue): &(&RecordId, &String)| *of == partition && **queue == order;
        let concurrent = self.running.iter().find(same).map(|(other, _)| *other);
        self.check(concurrent.is_none(), || {
            format!("{record_id:?} runs concurrently with {concurrent:?}")
        });
        let queue = self.delivered.get_mut(&(partition, order.clone()));
        let (delivered, last) = queue.expect("a started record was delivered");
        let next = delivered[*last..].iter().position(|delivered| *delivered == offset);
        let before = delivered[*last];
        *last += next.unwrap_or_default();
        self.check(next.is_some(), || format!("{record_id:?} was started after {before}"));
        let unanswered = self.unanswered.insert((partition, order.clone()), offset);
        let in_turn = unanswered.is_none_or(|unanswered| unanswered == offset);
        self.check(in_turn, || {
            format!("{record_id:?} was started before {unanswered:?} was answered")
        });
        self.running.insert(record_id, order);
        let running = self.running.len();
        let within = running <= self.max_in_flight;
        self.check(within, || format!("{running} records are in flight"));
    }

    /// Keeps the first violation. A panic at this point would be mistaken for a panic of the
    /// handler.
    fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = Some(violation());
        }
    }

    /// Notes that the service answered `Ok`.
    pub(crate) fn answered(&mut self, (partition, offset): RecordId) {
        self.unanswered.retain(|(of, _), unanswered| (*of, *unanswered) != (partition, offset));
    }

    /// Notes that a handler has ended or was dropped.
    pub(crate) fn handler_ended(&mut self, record_id: RecordId, processed: bool) {
        self.log_event("ends", (record_id, processed));
        self.running.remove(&record_id);
        if processed {
            self.processed.insert(record_id);
        }
    }

    /// Notes a commit, and checks that all records of `log` below the offset are processed.
    pub(crate) fn committed(&mut self, partition: i32, offset: i64, log: &[i64]) {
        self.log_event("committed", (partition, offset));
        for &below in log.iter().filter(|below| **below < offset) {
            let record_id = (partition, below);
            assert!(
                self.processed.contains(&record_id),
                "{offset} is committed, but {record_id:?} is not processed"
            );
        }
    }
}
