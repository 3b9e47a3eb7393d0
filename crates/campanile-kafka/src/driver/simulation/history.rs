//! What happened in a simulation, and the promises that are checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::time::Instant;

/// A record of the simulated topic: its partition and offset.
pub(super) type Place = (i32, i64);

/// What happened so far.
pub(super) struct History {
    hasher: DefaultHasher,
    start: Instant,
    /// Attempts that are in flight, each with its key.
    running: BTreeMap<Place, String>,
    /// What was delivered of each queue since its partition was assigned, and the place of what was
    /// started last. After a reset, an offset comes again.
    delivered: BTreeMap<(i32, String), (Vec<i64>, usize)>,
    /// The record of each queue whose handler was started last, until the service has answered `Ok`.
    unanswered: BTreeMap<(i32, String), i64>,
    /// Records that are processed.
    processed: BTreeSet<Place>,
    /// The partitions that this consumer may process.
    owned: BTreeSet<i32>,
    /// Whether the records of a partition are processed in order, and not only those of a key.
    by_partition: bool,
    most_in_flight: usize,
    /// The first promise that was broken by a handler's start.
    pub(super) violation: Option<String>,
    pub(super) attempts: u64,
    pub(super) revokes: u64,
    pub(super) resets: u64,
}

impl History {
    pub(super) fn new(by_partition: bool, most_in_flight: usize) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            start: Instant::now(),
            running: BTreeMap::new(),
            delivered: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            processed: BTreeSet::new(),
            owned: BTreeSet::new(),
            by_partition,
            most_in_flight,
            violation: None,
            attempts: 0,
            revokes: 0,
            resets: 0,
        }
    }

    /// Returns a hash of all that happened, in its order and at its time.
    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// Returns how many records are processed.
    pub(super) fn finished(&self) -> u64 {
        self.processed.len() as u64
    }

    fn happens(&mut self, what: &str, at: impl Hash) {
        what.hash(&mut self.hasher);
        at.hash(&mut self.hasher);
        self.start.elapsed().hash(&mut self.hasher);
    }

    pub(super) fn assigned(&mut self, partition: i32) {
        self.happens("assigned", partition);
        self.owned.insert(partition);
        self.delivered.retain(|(of, _), _| *of != partition);
        self.unanswered.retain(|(of, _), _| *of != partition);
    }

    /// The partition's position was moved backwards.
    pub(super) fn reset(&mut self, partition: i32) {
        self.happens("reset", partition);
        self.resets += 1;
    }

    /// The consumer has fetched a record.
    pub(super) fn delivered(&mut self, (partition, offset): Place, key: &str) {
        let queue = (partition, self.queue_of(key));
        self.delivered.entry(queue).or_default().0.push(offset);
    }

    fn queue_of(&self, key: &str) -> String {
        if self.by_partition { String::new() } else { key.to_owned() }
    }

    /// The partition belongs to another consumer from now on. If it was lost, that was not known here.
    pub(super) fn given_up(&mut self, partition: i32, lost: bool) {
        self.happens("given up", partition);
        self.revokes += 1;
        self.owned.remove(&partition);
        let busy = self.running.keys().find(|(of, _)| *of == partition);
        assert!(lost || busy.is_none(), "{busy:?} runs although its partition is given up");
    }

    /// A handler is started.
    pub(super) fn starts(&mut self, place: Place, key: &str) {
        self.happens("starts", place);
        self.attempts += 1;
        let (partition, offset) = place;
        self.check(self.owned.contains(&partition), || {
            format!("{place:?} is started after its revoke")
        });
        let order = self.queue_of(key);
        let same = |((of, _), queue): &(&Place, &String)| *of == partition && **queue == order;
        let beside = self.running.iter().find(same).map(|(other, _)| *other);
        self.check(beside.is_none(), || format!("{place:?} runs beside {beside:?} of its queue"));
        let queue = self.delivered.get_mut(&(partition, order.clone()));
        let (delivered, last) = queue.expect("what is started was delivered");
        let next = delivered[*last..].iter().position(|delivered| *delivered == offset);
        let before = delivered[*last];
        *last += next.unwrap_or_default();
        self.check(next.is_some(), || format!("{place:?} is started after {before}"));
        let unanswered = self.unanswered.insert((partition, order.clone()), offset);
        let in_turn = unanswered.is_none_or(|unanswered| unanswered == offset);
        self.check(in_turn, || format!("{place:?} is started before {unanswered:?} is answered"));
        self.running.insert(place, order);
        let running = self.running.len();
        let within = running <= self.most_in_flight;
        self.check(within, || format!("{running} records are in flight"));
    }

    /// Keeps the first violation: a panic here would be taken for the handler's.
    fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = Some(violation());
        }
    }

    /// The service has answered `Ok`.
    pub(super) fn answered(&mut self, (partition, offset): Place) {
        self.unanswered.retain(|(of, _), unanswered| (*of, *unanswered) != (partition, offset));
    }

    /// A handler has ended, or was dropped.
    pub(super) fn ends(&mut self, place: Place, processed: bool) {
        self.happens("ends", (place, processed));
        self.running.remove(&place);
        if processed {
            self.processed.insert(place);
        }
    }

    /// The brokers take this offset for a partition, of which these offsets are there.
    pub(super) fn committed(&mut self, partition: i32, offset: i64, log: &[i64]) {
        self.happens("committed", (partition, offset));
        for &below in log.iter().filter(|below| **below < offset) {
            let place = (partition, below);
            assert!(self.processed.contains(&place), "{offset} is committed, but not {place:?}");
        }
    }
}
