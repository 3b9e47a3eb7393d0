//! Random processes, keys and requests, over a store with faults, in one thread of virtual time; and
//! the invariants that hold throughout.
//!
//! * Under one keeper, at most one handler runs per key; over all keepers, at most one has a valid
//!   lock, unless the store has lost entries, or its clock was set forward.
//! * A keeper has at most one command per key in flight.
//! * A handler runs only under a granted token. Unless the store has lost entries, tokens increase, and at
//!   most one of them completes a key.
//! * A step does not run again after a handler was given its recorded result, and has one result, with the
//!   same exceptions.
//! * Nothing waits forever: every request ends, every record is released, every keeper settles all
//!   its locks, and every record is finished.
//! * No keeper panics.
//! * The history of the processes is sound by the [judge](crate::history::judge): each key that ran
//!   twice has a cause. Histories in which a handler continues after it has lost its lock, a third of
//!   them, are not judged.
//!
//! A seed determines everything that happens, except the values of nonces. [`Backend`] is the store, with
//! its faults.

#![expect(clippy::unwrap_used, reason = "a simulation is a test")]

mod backend;
mod handlers;
mod keeper_bugs;
mod link;
mod operations;
mod plan;
mod process;
mod requests;
mod seeds;
mod server;
mod store_clock;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use campanile_core::{Clock, FencingToken, IdempotencyKey, Outcome, Record, StoreKey};
use campanile_history::{Cause, FaultKind, History, Verdict, judge};
use campanile_idempotency::policy::OnLost;
use fastrand::Rng;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::backend::{Backend, Connection, Memory, MemoryConnection};
use self::handlers::Handlers;
pub use self::keeper_bugs::{BuggyKeeper, KeeperBug};
pub use self::link::Link;
pub use self::operations::{Operations, RecordingStore};
pub use self::plan::Plan;
use self::process::{Process, process_name};
use self::seeds::SEED;
pub use self::seeds::simulate_seeds;
pub use self::server::{Availability, Granted, Requests, Server, Table, granted, read_details};
pub use self::store_clock::StoreClock;
pub use self::watched::Watched;
use crate::TestClock;
use crate::history::HistoryRecorder;

/// Longer than anything in a simulation takes.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// What the processes and the store of a simulation share.
#[derive(Clone, Debug)]
pub struct World {
    /// The parameters.
    pub plan: Plan,
    /// The clock of all processes.
    pub clock: TestClock,
    /// The clock of the store.
    pub store_clock: StoreClock,
    /// The operations that the store applied.
    pub operations: Operations,
    /// The history of the store and its faults.
    pub recorder: HistoryRecorder,
    /// The ended faults that still have an effect, and until when.
    recovering: Arc<Mutex<Vec<(u64, FaultKind)>>>,
}

impl World {
    /// Records a fault that ends now, and has an effect for a further `recovery`, in microseconds.
    fn record_fault(&self, from: u64, recovery: u64, kind: FaultKind) {
        let until = self.recorder.now() + recovery;
        self.recorder.fault(from, Some(until), kind.clone());
        self.recovering.lock().unwrap().push((until, kind));
    }

    /// Suspends the machines for this time. Timeouts of calls that a fault has left without an answer
    /// end later by as much.
    fn suspend(&self, duration: Duration) {
        let from = self.recorder.now();
        self.clock.advance(duration);
        let mut recovering = self.recovering.lock().unwrap();
        recovering.retain(|(until, _)| *until > from);
        for (until, kind) in &mut *recovering {
            *until += duration.as_micros() as u64;
            self.recorder.fault(from, Some(*until), kind.clone());
        }
    }
}

struct Environment<B> {
    world: World,
    /// The clock of the history.
    history_clock: Clock,
    backend: B,
    handlers: Handlers,
    records: Mutex<Vec<SentRecord>>,
    processes: Mutex<Processes>,
    /// The history.
    folder: TempDir,
}

struct SentRecord {
    key: String,
    is_finished: bool,
}

#[derive(Default)]
struct Processes {
    started: u64,
    running: BTreeSet<u64>,
}

/// What happened in the simulation of a seed.
#[derive(Debug)]
pub struct Report {
    /// A hash of all events and operations, their order and their times.
    pub hash: u64,
    /// The judge's decision. `None` for a simulation in which runs may overlap.
    pub verdict: Option<Verdict>,
}

/// Simulates many seeds, as [`simulate_seeds`] does. Fails if one of them violates an invariant, or if no
/// key ran again for one of these causes, because what does not occur is not checked.
pub fn simulate_many<B: Backend>(cases: u64, expected: &[Cause]) {
    let (mut judged, mut records, mut runs) = (0, 0, 0);
    let mut causes = BTreeMap::<Cause, usize>::new();
    let seeds = simulate_seeds(cases, simulate::<B>, |Report { verdict, .. }| {
        let Some(verdict) = verdict else { return };
        judged += 1;
        records += verdict.records;
        runs += verdict.runs;
        for (cause, count) in verdict.causes() {
            *causes.entry(cause).or_default() += count;
        }
    });
    let Some(seeds) = seeds else { return };
    let again = causes.iter().map(|(cause, count)| format!("`{cause}` {count}"));
    let again = again.collect::<Vec<_>>().join(", ");
    let (first, count) = (seeds.start, seeds.end - seeds.start);
    println!("simulated: {first}; {count}; {judged}; {records}; {runs}; {again}");
    let missing = expected.iter().find(|cause| !causes.contains_key(cause));
    assert_eq!(missing, None, "no key ran again for this cause");
}

/// Finds the first of this many seeds whose simulation violates an invariant.
pub fn find_violation<B: Backend>(cases: u64) -> Option<u64> {
    let is_violated = |seed: &u64| catch_unwind(AssertUnwindSafe(|| simulate::<B>(*seed))).is_err();
    (0..cases).find(is_violated)
}

/// Simulates a seed.
///
/// # Panics
/// Panics if an invariant is violated.
pub fn simulate<B: Backend>(seed: u64) -> Report {
    fastrand::seed(seed); // the keepers' jitter
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run::<B>(Rng::with_seed(seed)))
}

async fn run<B: Backend>(mut rng: Rng) -> Report {
    let environment = Arc::new(Environment::<B>::new(&mut rng));
    let plan = environment.world.plan.clone();
    let (mut processes, mut closed) = (Vec::new(), JoinSet::new());
    for _ in 0..plan.processes {
        processes.push(Process::start(&environment, &mut rng).await);
    }
    for _ in 0..plan.events {
        sleep(plan.pause(&mut rng)).await;
        let at = rng.usize(..processes.len());
        match rng.u8(..100) {
            ..76 => processes[at].request(&environment, &mut rng),
            76..94 if !plan.has_faults() => processes[at].request(&environment, &mut rng),
            76..84 => processes[at].outage(&mut rng),
            84..87 => environment.backend.break_store(&mut rng),
            87..92 if plan.steps_clock => environment.step_clock(&mut rng),
            87..94 => environment.suspend_all(plan.ttl.mul_f64(rng.f64() * 2.0)),
            94..97 => {
                let started = Process::start(&environment, &mut rng).await;
                std::mem::replace(&mut processes[at], started).crash(&environment).await;
            }
            _ => {
                let started = Process::start(&environment, &mut rng).await;
                let process = std::mem::replace(&mut processes[at], started);
                closed.spawn(process.close(environment.clone(), false));
            }
        }
    }
    environment.backend.heal();
    for process in processes {
        closed.spawn(process.close(environment.clone(), true));
    }
    timeout(HOUR * 4, closed.join_all()).await.expect("every process ends");
    environment.finish_records().await;
    let World { store_clock, .. } = &environment.world;
    let may_overlap = environment.backend.has_lost_writes() || store_clock.was_set_forward();
    environment.handlers.assert_no_violations(may_overlap);
    if !environment.backend.has_lost_writes() {
        environment.world.operations.assert_consistent(plan.max_attempts);
    }
    environment.judge()
}

impl<B: Backend> Environment<B> {
    fn new(rng: &mut Rng) -> Self {
        let (folder, clock) = (TempDir::new().unwrap(), TestClock::new());
        let plan = Plan::random(rng);
        let settings = Some(plan.settings());
        let history_clock = rising(clock.clone());
        let recorder =
            HistoryRecorder::with_clock(folder.path(), "world", settings, history_clock.clone());
        let operations = Operations::default();
        let store_clock = StoreClock::new(clock.clone());
        let world = World {
            plan,
            clock,
            store_clock,
            operations,
            recorder: recorder.unwrap(),
            recovering: Arc::default(),
        };
        Self {
            backend: B::start(&world, rng),
            world,
            history_clock,
            handlers: Handlers::default(),
            records: Mutex::default(),
            processes: Mutex::default(),
            folder,
        }
    }

    fn start_process(&self) -> u64 {
        let mut processes = self.processes.lock().unwrap();
        processes.started += 1;
        let id = processes.started;
        processes.running.insert(id);
        id
    }

    fn end_process(&self, id: u64) {
        self.processes.lock().unwrap().running.remove(&id);
    }

    /// Suspends all processes and the store's machine for this time: no timer fires meanwhile.
    fn suspend_all(&self, duration: Duration) {
        let World { plan, recorder, .. } = &self.world;
        let from = recorder.now();
        self.world.suspend(duration);
        // A lock that was asked for before may be granted afterwards, and counts from the request.
        let until = recorder.now() + plan.command_timeout().as_micros() as u64;
        for &id in &self.processes.lock().unwrap().running {
            let suspended = FaultKind::Suspended { process: process_name(id) };
            recorder.fault(from, Some(until), suspended);
        }
    }

    /// Sets the store's clock forward or back. After a step forward, two processes can hold a lock.
    fn step_clock(&self, rng: &mut Rng) {
        let World { plan, recorder, store_clock, .. } = &self.world;
        let by = plan.ttl.mul_f64(rng.f64() * 2.0).as_micros() as i64;
        let by = if rng.bool() { by } else { -by };
        let at = recorder.now();
        // A lock that was granted before may begin its handler afterwards, until its deadline.
        let until = at + plan.ttl.as_micros() as u64;
        recorder.fault(at, Some(until), FaultKind::ClockStepped { by });
        store_clock.step(by);
    }

    /// Sends a record with this key.
    fn send_record(&self, key: usize) -> Record {
        let key = key.to_string();
        let mut records = self.records.lock().unwrap();
        let offset = records.len();
        records.push(SentRecord { key: key.clone(), is_finished: false });
        drop(records);
        let record = self.record(offset);
        let recorder = &self.world.recorder;
        recorder.sent(recorder.now(), record.coordinates(), Some(&key), None);
        record
    }

    /// A delivery of the record at this offset.
    fn record(&self, offset: usize) -> Record {
        let key = self.records.lock().unwrap()[offset].key.clone();
        Record::builder("payments", 0, offset as i64).header("id", key).build()
    }

    /// Notes that a record is finished, and checks that the store agrees.
    fn check_finished(&self, record: &Record, outcome: &Outcome<u64>) {
        let mut records = self.records.lock().unwrap();
        let sent = &mut records[record.offset() as usize];
        sent.is_finished = true;
        let (key, operations) = (store_key(&sent.key), &self.world.operations);
        let completed =
            |token: u64| operations.has_completed(&key, FencingToken::new(token).unwrap());
        match outcome {
            Outcome::Processed(token) => assert!(completed(*token)),
            Outcome::Duplicate(duplicate) => assert!(completed(duplicate.reply.unwrap())),
            Outcome::GivenUp(_) => assert!(operations.has_rejected(&key)),
            other => panic!("{other:?}"),
        }
    }

    /// Delivers the records that are not finished, until they are.
    async fn finish_records(&self) {
        let process = Process::without_faults(self).await;
        let count = self.records.lock().unwrap().len();
        for offset in 0..count {
            let is_finished = self.records.lock().unwrap()[offset].is_finished;
            if !is_finished {
                process.finish(self, offset).await;
            }
        }
    }

    /// Judges the history.
    fn judge(&self) -> Report {
        let World { plan, recorder, operations, .. } = &self.world;
        for key in 0..plan.keys {
            let key = key.to_string();
            recorder.entry(recorder.now(), &key, self.backend.entry(&store_key(&key)).as_ref());
        }
        let history = History::read(self.folder.path()).unwrap();
        let mut hasher = DefaultHasher::new();
        for (process, event) in history.events() {
            (process, format!("{event:?}")).hash(&mut hasher);
        }
        operations.hash().hash(&mut hasher);
        // Without `Cancel`, runs overlap when a lock is lost.
        let verdict = (plan.on_lost == OnLost::Cancel).then(|| judge(&history));
        if let Some(verdict) = &verdict {
            assert!(verdict.is_sound(), "{verdict}");
        }
        Report { hash: hasher.finish(), verdict }
    }
}

/// Keeps the history of a seed that is repeated and fails, for the example `verify` of `campanile-history`.
impl<B> Drop for Environment<B> {
    fn drop(&mut self) {
        if thread::panicking() && std::env::var_os(SEED).is_some() {
            self.folder.disable_cleanup(true);
            println!("the history is kept in {}", self.folder.path().display());
        }
    }
}

/// A clock of which no two readings are equal: paused time would otherwise hide the order of events.
fn rising(clock: TestClock) -> Clock {
    let last = AtomicU64::new(0);
    Clock::from_fn(move || {
        let now = clock.elapsed().as_micros() as u64;
        let reading = now.max(last.load(Ordering::Relaxed) + 1);
        last.store(reading, Ordering::Relaxed);
        Duration::from_micros(reading)
    })
}

fn store_key(id: &str) -> StoreKey {
    let key = IdempotencyKey::new(id.to_owned()).unwrap();
    StoreKey::new("payments".try_into().unwrap(), &key)
}
