//! A topic, two consumers that process it, and a fault in the meantime.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use campanile::{Consumer, RedisConfig, RedisStore};
use campanile_test::{RedisServer, eventually};
use tokio::sync::watch;

use crate::ledger::{Ledger, Run, now};
use crate::report::{Cause, Fault, Report, runs_by_key};
use crate::running_consumer::{Payment, RunningConsumer, Work};
use crate::{COMMAND_TIMEOUT, DEFAULT_RECORDS, KAFKA, LOCK_TTL, env_u64, group, store};

/// A record waits for its predecessor in the partition, so this is the number of records in flight.
const PARTITIONS: i32 = 48;
pub(crate) const NAMESPACE: &str = "storms";
const TIMEOUT: Duration = Duration::from_secs(120);

/// Number of handlers that run throughout the fault, each with its own key.
const LONG_RUNS: i32 = 6;

pub(crate) struct Scenario {
    name: &'static str,
    seed: u64,
    topic: String,
    /// One ledger per consumer.
    ledgers: [Ledger; 2],
    consumers: Vec<RunningConsumer>,
    records: usize,
    keys: usize,
    /// Keys with more than one record, possibly at the other consumer.
    repeated: HashSet<String>,
    release: watch::Sender<bool>,
    fault: Option<Fault>,
    producer_thread: Option<thread::JoinHandle<()>>,
}

/// Creates a configuration with a command timeout, for a Redis that must answer in time.
pub(crate) fn with_timeout(config: impl Into<RedisConfig>) -> RedisConfig {
    config.into().with_command_timeout(COMMAND_TIMEOUT)
}

impl Scenario {
    /// Starts two consumers, each with its own store, and starts to fill their topic.
    pub(crate) fn start(name: &'static str, seed: u64, config: impl Fn() -> RedisConfig) -> Self {
        static TOPICS: AtomicU32 = AtomicU32::new(0);
        println!("{name}: seed {seed}");
        let topic = format!("storm-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        KAFKA.create_topic(&topic, PARTITIONS, &[]).unwrap();
        let (release, released) = watch::channel(false);
        let ledgers = [Ledger::default(), Ledger::default()];
        let serve = |ledger| {
            let mut settings = KAFKA.consumer_config(&topic);
            // A busy machine must not look like a fault of the storm.
            settings.set("session.timeout.ms", "20000");
            let consumer = Consumer::new(settings).unwrap().subscribe([topic.as_str()]);
            let connect = async { RedisStore::connect(config()).await.unwrap() };
            RunningConsumer::start(consumer, NAMESPACE, LOCK_TTL, connect, ledger, &released)
        };
        let consumers = ledgers.iter().map(serve).collect();
        let (records, keys, repeated, fault, producer_thread) = (0, 0, HashSet::new(), None, None);
        let mut scenario = Self {
            name,
            seed,
            topic,
            ledgers,
            consumers,
            records,
            keys,
            repeated,
            release,
            fault,
            producer_thread,
        };
        scenario.wait_for_assignments();
        scenario.start_producing();
        scenario
    }

    /// Waits until each consumer has partitions, so that no partition moves later.
    fn wait_for_assignments(&mut self) {
        let retry_interval = Duration::from_millis(300);
        let has_runs = |ledger: &Ledger| ledger.with_runs(|runs| !runs.is_empty());
        while eventually(retry_interval, || self.ledgers.iter().all(has_runs).then_some(()))
            .is_none()
        {
            let first = self.keys;
            let payments = (0..PARTITIONS).map(|partition| {
                let payment = Payment::normal(first + partition as usize);
                payment.message(&self.topic, partition)
            });
            KAFKA.producer().produce_all(payments).unwrap();
            self.keys += PARTITIONS as usize;
            self.records += PARTITIONS as usize;
        }
    }

    /// Starts to fill the topic. One in ten records repeats the key of another, in any partition.
    /// Records are produced while earlier ones are processed, possibly at the same speed.
    fn start_producing(&mut self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let long_runs = (0..LONG_RUNS).map(|n| {
            let payment = Payment { id: format!("throughout-{n}"), work: Work::UntilReleased };
            payment.message(&self.topic, n)
        });
        KAFKA.producer().produce_all(long_runs).unwrap();
        let records = env_u64("CAMPANILE_STORM_RECORDS").unwrap_or(DEFAULT_RECORDS) as usize;
        let keys = self.keys..self.keys + records / 10 * 9;
        let repeats = records - keys.len();
        let mut numbers: Vec<_> = keys.clone().collect();
        let repeated: Vec<_> = (0..repeats).map(|_| rng.usize(keys.clone())).collect();
        self.repeated = repeated.iter().map(|&number| Payment::normal(number).id).collect();
        numbers.extend(repeated);
        rng.shuffle(&mut numbers);
        let message = |number| {
            let partition = rng.i32(0..PARTITIONS);
            Payment::normal(number).message(&self.topic, partition)
        };
        let normal: Vec<_> = numbers.into_iter().map(message).collect();
        let produce = || drop(KAFKA.producer().produce_all(normal).unwrap());
        self.producer_thread = Some(thread::spawn(produce));
        self.keys += keys.len() + LONG_RUNS as usize;
        self.records += records + LONG_RUNS as usize;
    }

    /// Counts how many runs satisfy the condition.
    fn count(&self, condition: impl Fn(&Run) -> bool) -> usize {
        let count =
            |ledger: &Ledger| ledger.with_runs(|runs| runs.iter().filter(|r| condition(r)).count());
        self.ledgers.iter().map(count).sum()
    }

    /// Repeats the action until this fraction of the keys is processed.
    pub(crate) fn repeat_until(&self, fraction: f64, mut action: impl FnMut()) {
        let done = || {
            action();
            self.has_processed(fraction).then_some(())
        };
        eventually(TIMEOUT, done).expect("the keys are processed");
    }

    /// Checks whether this fraction of the keys is processed.
    fn has_processed(&self, fraction: f64) -> bool {
        self.count(|run| run.finished_at().is_some()) as f64 >= fraction * self.keys as f64
    }

    /// Starts the fault once this fraction of the keys is processed and the handlers that run
    /// throughout the fault have started.
    pub(crate) fn start_fault(&mut self, fraction: f64, cause: Cause) {
        let running = || self.count(|run| run.key.starts_with("throughout"));
        let ready =
            || (self.has_processed(fraction) && running() == LONG_RUNS as usize).then_some(());
        eventually(TIMEOUT, ready).expect("the load has started");
        self.fault = Some(Fault { cause, started: now(), ended: Duration::MAX });
    }

    /// Ends the fault: the store can answer again.
    pub(crate) fn end_fault(&mut self) {
        self.fault.as_mut().expect("the fault has started").ended = now();
        self.release.send(true).expect("the consumers are serving");
    }

    /// Waits until every produced record is committed, and compares the handlers' runs with the
    /// entries on these servers.
    pub(crate) fn finish<'a>(self, servers: impl IntoIterator<Item = &'a RedisServer>) -> Report {
        let Self { name, seed, topic, ledgers, consumers, records, keys, repeated, fault, .. } =
            self;
        let fault = fault.expect("the fault has started");
        self.producer_thread.expect("the topic is being filled").join().unwrap();
        group::wait_until_committed(&KAFKA.consumer_config(&topic), &topic, PARTITIONS, TIMEOUT);
        let summaries: Vec<_> = consumers.into_iter().map(RunningConsumer::stop).collect();
        let entries = store::read_entries(servers, NAMESPACE);
        let runs_by_key = runs_by_key(&ledgers);
        let start_times =
            runs_by_key.values().flatten().map(|consumer_run| consumer_run.run.started);
        let starts =
            start_times.clone().filter(|at| (fault.started..fault.ended).contains(at)).count();
        let first = start_times.filter(|at| *at >= fault.ended).min();
        let recovery = first.map_or("no".into(), |at| format!("{:?}", at - fault.ended));

        let mut report =
            Report::evaluate(&fault, keys, &repeated, &runs_by_key, &entries, &summaries);
        let (twice, violations) = (report.twice, &report.violations);
        println!(
            "storm: {name}: {records} records, {keys} keys, {twice} keys twice ({}), {} violations; \
             {starts} begun in the {:?} of the fault, the next {recovery} after it (goal {:?}); \
             seed {seed}",
            fault.cause,
            violations.len(),
            fault.ended - fault.started,
            COMMAND_TIMEOUT * 3,
        );
        report.lost_completions.iter_mut().for_each(|at| *at = at.saturating_sub(fault.started));
        if let Some(last) = report.lost_completions.iter().max() {
            let count = report.lost_completions.len();
            println!("{count} completions were lost, the last of them {last:?} into the fault");
        }
        assert!(violations.is_empty(), "{violations:#?}");
        report
    }
}
