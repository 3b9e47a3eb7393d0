//! A small simulation of consumer processes that work in partition order on one store, and record
//! a sound history.

mod faults;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use campanile_history::{
    Answer, Begin, Coordinates, Effect, End, Entry, Event, How, Outcome, Partition, Position,
    Published, Sent, State, Transactions, Visible,
};

pub(crate) const LOCK_TTL: u64 = 3_000_000;
const TOPIC: &str = "payments";
const PROCESSES: usize = 4;

/// The kinds of simulations.
pub(crate) const TRANSACTIONS: [Option<Transactions>; 3] =
    [None, Some(Transactions::Store), Some(Transactions::Broker)];

/// What a simulation does.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) records: usize,
    pub(crate) partitions: usize,
    /// The average number of steps between two faults.
    pub(crate) steps_per_fault: u64,
    /// Whether the store loses writes and entries.
    pub(crate) has_data_loss: bool,
    /// The transactions in which handlers have their effects.
    pub(crate) transactions: Option<Transactions>,
}

/// The events of each process, by its name.
pub(crate) type Recorded = BTreeMap<String, Vec<Event>>;

struct Simulation {
    rng: fastrand::Rng,
    transactions: Option<Transactions>,
    now: u64,
    partitions: Vec<Log>,
    /// When each partition continues.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    processes: Vec<Consumer>,
    started: usize,
    next_token: u64,
    entries: BTreeMap<String, Stored>,
    /// Those that transactions have committed.
    effects: Vec<Committed>,
    /// The number of outputs.
    outputs: i64,
    recorded: Recorded,
}

/// A partition, and what its owner does with it.
struct Log {
    keys: Vec<String>,
    next: usize,
    /// The records below this are committed.
    committed: usize,
    /// The records with outputs that are not committed.
    pending: Vec<Coordinates>,
    owner: usize,
    run: Option<Running>,
    /// What was queued for another time is ignored, such as a step of the former owner.
    continues_at: u64,
}

struct Running {
    number: u64,
    phase: Phase,
    /// An earlier run under the same lock, if its commit may still arrive.
    late: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Begun,
    HadEffect,
    Ended,
    /// The transaction was rolled back, and the handler runs again.
    RolledBack,
}

struct Consumer {
    name: String,
    next_run: u64,
    suspended_until: u64,
}

/// An entry of the store.
#[derive(Clone)]
struct Stored {
    state: State,
    token: u64,
    attempt: u32,
    /// The record of the run.
    record: Coordinates,
    /// When the lock expires, for a key that is PROCESSING.
    locked_until: u64,
    since: u64,
}

/// An effect in the store.
struct Committed {
    at: u64,
    process: String,
    run: u64,
}

/// Runs a simulation until all records are finished.
pub(crate) fn simulate(plan: &Plan) -> Recorded {
    let mut simulation = Simulation::new(plan);
    let mut next_fault = simulation.rng.u64(1..=plan.steps_per_fault * 2);
    while let Some(Reverse((at, partition))) = simulation.queue.pop() {
        let log = &simulation.partitions[partition];
        if log.continues_at != at || log.next == log.keys.len() {
            continue;
        }
        simulation.now = at;
        simulation.step(partition);
        next_fault -= 1;
        if next_fault == 0 {
            next_fault = simulation.rng.u64(1..=plan.steps_per_fault * 2);
            simulation.fault(plan.has_data_loss);
        }
    }
    simulation.finish()
}

/// Writes a history, and calls a function with the names and the contents of its files.
pub(crate) fn with_texts<T>(recorded: &Recorded, call: impl FnOnce(&[(&str, &str)]) -> T) -> T {
    let transactions = recorded.values().flatten().find_map(|event| match event {
        Event::Visible(_) => Some(r#","transactions":"store""#),
        Event::Output(_) => Some(r#","transactions":"broker""#),
        _ => None,
    });
    let transactions = transactions.unwrap_or_default();
    let settings =
        format!(r#","settings":{{"order":"partition","lock_ttl":{LOCK_TTL}{transactions}}}"#);
    let mut files = Vec::new();
    for (process, events) in recorded {
        let mut text = format!(
            r#"{{"event":"history","version":1,"process":"{process}","clock":"c","unit":"us"{settings}}}"#
        );
        for event in events {
            text.push('\n');
            text.push_str(&serde_json::to_string(event).unwrap());
        }
        files.push((&**process, text + "\n"));
    }
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, &**text)).collect();
    call(&files)
}

impl Simulation {
    fn new(plan: &Plan) -> Self {
        let mut rng = fastrand::Rng::with_seed(plan.seed);
        let mut partitions: Vec<Log> = (0..plan.partitions)
            .map(|partition| Log {
                keys: Vec::new(),
                next: 0,
                committed: 0,
                pending: Vec::new(),
                owner: partition % PROCESSES,
                run: None,
                continues_at: 0,
            })
            .collect();
        let mut sent = Vec::new();
        for number in 0..plan.records {
            // One in ten records repeats a key.
            let key = if number > 0 && rng.u8(..) < 26 { rng.usize(..number) } else { number };
            let partition = rng.usize(..plan.partitions);
            let log = &mut partitions[partition];
            sent.push(Event::Sent(Sent {
                at: 1,
                record: Coordinates::new(TOPIC, partition as i32, log.keys.len() as i64),
                key: Some(format!("p-{key}")),
                order: None,
            }));
            log.keys.push(format!("p-{key}"));
        }
        let recorded = BTreeMap::from([("test".to_owned(), sent)]);
        let (queue, entries, effects) = (BinaryHeap::new(), BTreeMap::new(), Vec::new());
        let transactions = plan.transactions;
        let (now, processes, started, next_token) = (10, Vec::new(), 0, 1);
        let mut simulation = Self {
            rng,
            transactions,
            now,
            partitions,
            queue,
            processes,
            started,
            next_token,
            entries,
            effects,
            outputs: 0,
            recorded,
        };
        for process in 0..PROCESSES {
            let consumer = simulation.new_consumer();
            simulation.processes.insert(process, consumer);
        }
        (0..plan.partitions).for_each(|partition| simulation.continue_in(partition, 0));
        simulation
    }

    fn new_consumer(&mut self) -> Consumer {
        self.started += 1;
        Consumer { name: format!("worker-{}", self.started), next_run: 0, suspended_until: 0 }
    }

    fn continue_in(&mut self, partition: usize, micros: u64) {
        let log = &mut self.partitions[partition];
        // Strictly later, so that each time is that of one decision.
        log.continues_at = (self.now + micros).max(log.continues_at + 1);
        self.queue.push(Reverse((log.continues_at, partition)));
    }

    fn record_event(&mut self, process: &str, event: Event) {
        match self.recorded.get_mut(process) {
            Some(events) => events.push(event),
            None => drop(self.recorded.insert(process.into(), vec![event])),
        }
    }

    /// Records an event of the owner of a partition.
    fn record_owned(&mut self, partition: usize, event: Event) {
        let owner = self.owner(partition);
        self.record_event(&owner, event);
    }

    fn owner(&self, partition: usize) -> String {
        self.processes[self.partitions[partition].owner].name.clone()
    }

    fn position(&self, partition: usize) -> (Coordinates, String) {
        let log = &self.partitions[partition];
        let record = Coordinates::new(TOPIC, partition as i32, log.next as i64);
        (record, log.keys[log.next].clone())
    }

    /// Continues the next record of a partition.
    fn step(&mut self, partition: usize) {
        let (at, (record, key)) = (self.now, self.position(partition));
        let Some(Running { number: run, phase, late }) = self.partitions[partition].run else {
            return self.acquire(partition, record, key);
        };
        match phase {
            Phase::Ended | Phase::RolledBack if self.is_rolled_back(phase) => {
                // One in some commits that were given up arrives later.
                let late = Some(run).filter(|_| phase == Phase::Ended && self.rng.bool());
                let Stored { token, attempt, .. } = self.entries[&key];
                self.begin(partition, record, key, token, attempt, late);
            }
            Phase::Ended if late.is_some_and(|_| self.rng.bool()) => {
                self.complete(partition, &key, late.expect("checked"));
                let (outcome, error) = (Outcome::Error, Some("committed before".into()));
                self.record_owned(partition, Event::Answer(Answer { at, record, outcome, error }));
                self.partitions[partition].run = None;
                self.continue_in(partition, 10);
            }
            Phase::Begun => match self.rng.u8(..100) {
                0..4 => self.end(partition, run, How::Error, None),
                4..6 => self.end(partition, run, How::Dropped, None),
                _ => {
                    self.record_owned(partition, Event::Effect(Effect { at, run }));
                    self.enter(partition, run, Phase::HadEffect);
                }
            },
            Phase::HadEffect => {
                let end = End { at, run, how: How::Ok, lost: None };
                self.record_owned(partition, Event::End(end));
                self.enter(partition, run, Phase::Ended);
            }
            Phase::Ended | Phase::RolledBack => {
                self.complete(partition, &key, run);
                self.answer(partition, record, Outcome::Processed);
            }
        }
    }

    fn enter(&mut self, partition: usize, run: u64, phase: Phase) {
        let late = self.partitions[partition].run.as_ref().and_then(|running| running.late);
        self.partitions[partition].run = Some(Running { number: run, phase, late });
        let micros = self.rng.u64(1..20_000);
        self.continue_in(partition, micros);
    }

    /// Whether the transaction is rolled back when it should be committed, because of a conflict.
    fn is_rolled_back(&mut self, phase: Phase) -> bool {
        phase == Phase::RolledBack
            || (self.transactions == Some(Transactions::Store) && self.rng.u8(..) < 16)
    }

    fn acquire(&mut self, partition: usize, record: Coordinates, key: String) {
        let now = self.now;
        let attempt = match self.entries.get(&key) {
            Some(entry) if entry.state == State::Completed => {
                return self.answer(partition, record, Outcome::Duplicate);
            }
            Some(entry) if entry.state == State::Processing && entry.locked_until > now => {
                let wait = self.rng.u64(1..100_000).min(entry.locked_until - now);
                return self.continue_in(partition, wait);
            }
            Some(entry) => entry.attempt + 1,
            None => 1,
        };
        let token = self.next_token;
        self.next_token += 1;
        // Renewed as long as its owner lives.
        let (state, locked_until) = (State::Processing, u64::MAX);
        let stored =
            Stored { state, token, attempt, record: record.clone(), locked_until, since: now };
        self.entries.insert(key.clone(), stored);
        self.begin(partition, record, key, token, attempt, None);
    }

    fn begin(
        &mut self,
        partition: usize,
        record: Coordinates,
        key: String,
        token: u64,
        attempt: u32,
        late: Option<u64>,
    ) {
        let process = &mut self.processes[self.partitions[partition].owner];
        process.next_run += 1;
        let (at, run) = (self.now, process.next_run);
        let (key, token, attempt) = (Some(key), Some(token), Some(attempt));
        self.record_owned(partition, Event::Begin(Begin { at, run, record, key, token, attempt }));
        self.partitions[partition].run = Some(Running { number: run, phase: Phase::Begun, late });
        self.enter(partition, run, Phase::Begun);
    }

    /// Ends a run without a success. A drop hands its attempt back, and moves the partition.
    fn end(&mut self, partition: usize, run: u64, how: How, lost: Option<String>) {
        let (at, (record, key)) = (self.now, self.position(partition));
        self.record_owned(partition, Event::End(End { at, run, how, lost }));
        let entry = self.entries.get_mut(&key).expect("the key is locked");
        (entry.state, entry.since) = (State::Retrying, at);
        if how == How::Dropped {
            entry.attempt -= 1;
            self.move_partition(partition);
        } else {
            let (outcome, error) = (Outcome::Error, Some("declined".into()));
            self.record_owned(partition, Event::Answer(Answer { at, record, outcome, error }));
        }
        self.partitions[partition].run = None;
        let backoff = self.rng.u64(1..50_000);
        self.continue_in(partition, backoff);
    }

    /// Completes the entry, and commits the effect of this run of the owner with it.
    fn complete(&mut self, partition: usize, key: &str, run: u64) {
        let (at, process) = (self.now, self.owner(partition));
        self.effects.push(Committed { at, process, run });
        let entry = self.entries.get_mut(key).expect("the key is locked");
        (entry.state, entry.since) = (State::Completed, self.now);
    }

    fn answer(&mut self, partition: usize, record: Coordinates, outcome: Outcome) {
        let at = self.now;
        let (_, key) = self.position(partition);
        if self.entries[&key].record == record {
            self.partitions[partition].pending.push(record.clone());
        }
        self.record_owned(partition, Event::Answer(Answer { at, record, outcome, error: None }));
        let log = &mut self.partitions[partition];
        (log.next, log.run) = (log.next + 1, None);
        let (offset, is_last) = (log.next as i64, log.next == log.keys.len());
        if is_last || self.rng.u8(..) < 64 {
            self.commit_outputs(partition);
            let partition = Partition { topic: TOPIC.into(), number: partition as i32 };
            self.record_event("broker", Event::Commit(Position { at, partition, offset }));
        }
        self.continue_in(partition, 10);
    }

    /// Commits the outputs of the records that are finished, with the next offset.
    fn commit_outputs(&mut self, partition: usize) {
        let log = &mut self.partitions[partition];
        log.committed = log.next;
        let records = std::mem::take(&mut log.pending);
        if self.transactions == Some(Transactions::Broker) {
            for record in records {
                self.outputs += 1;
                let (at, to) = (self.now, Coordinates::new("invoices", 0, self.outputs));
                self.record_event("test", Event::Output(Published { at, record, to }));
            }
        }
    }

    /// Records the effects and the entries.
    fn finish(mut self) -> Recorded {
        // After the end of the last suspension.
        let at = self.now + 10 * LOCK_TTL;
        if self.transactions == Some(Transactions::Store) {
            for Committed { process, run, .. } in std::mem::take(&mut self.effects) {
                self.record_event("test", Event::Visible(Visible { at, process, run }));
            }
        }
        for (key, entry) in std::mem::take(&mut self.entries) {
            let Stored { state, token, attempt, .. } = entry;
            let (token, attempt) = (Some(token), Some(attempt));
            self.record_event(
                "test",
                Event::Entry(Entry { at, since: None, key, state, token, attempt }),
            );
        }
        self.recorded
    }
}
