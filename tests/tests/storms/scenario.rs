//! A topic, two consumers that process it, and a fault in the meantime.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use campanile::{Consumer, RedisConfig, RedisStore};
use campanile_test::history::{Cause, FaultKind, HistoryRecorder, How, Order, Verdict};
use campanile_test::{RedisServer, eventually};
use tokio::sync::watch;

use crate::history::{Report, TestHistory, produce};
use crate::progress::Run;
use crate::running_consumer::{Payment, RunningConsumer, Work};
use crate::{COMMAND_TIMEOUT, DEFAULT_RECORDS, KAFKA, LOCK_TTL, env_u64, group, store};

/// A record waits for its predecessor in the partition, so this is the number of records in flight.
const PARTITIONS: i32 = 48;
pub(crate) const NAMESPACE: &str = "storms";
const TIMEOUT: Duration = Duration::from_secs(120);

/// The names of the consumers in the history.
const CONSUMERS: [&str; 2] = ["consumer-0", "consumer-1"];

/// How far behind a replica may be, on a machine with a busy disk: an fsync blocks it.
const MAX_REPLICA_LAG: Duration = Duration::from_secs(5);

/// Number of handlers that run throughout the fault, each with its own key.
const LONG_RUNS: i32 = 6;

pub(crate) struct Scenario {
    name: &'static str,
    seed: u64,
    topic: String,
    history: TestHistory,
    consumers: Vec<RunningConsumer>,
    keys: usize,
    /// Keys with more than one record, possibly at the other consumer.
    repeated: HashSet<String>,
    release: watch::Sender<bool>,
    fault: Option<FaultKind>,
    may_lose_writes: bool,
    started: u64,
    ended: u64,
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
        let history = TestHistory::new(Order::Partition, LOCK_TTL);
        let serve = |name| {
            let recorder = HistoryRecorder::create(history.folder(), name, None).unwrap();
            let mut settings = KAFKA.consumer_config(&topic);
            // A busy machine must not look like a fault of the storm.
            settings.set("session.timeout.ms", "20000");
            let consumer = Consumer::new(settings).unwrap().subscribe([topic.as_str()]);
            let connect = async { RedisStore::connect(config()).await.unwrap() };
            RunningConsumer::start(consumer, NAMESPACE, LOCK_TTL, connect, &recorder, &released)
        };
        let consumers = CONSUMERS.into_iter().map(serve).collect();
        let mut scenario = Self {
            name,
            seed,
            topic,
            history,
            consumers,
            keys: 0,
            repeated: HashSet::new(),
            release,
            fault: None,
            may_lose_writes: false,
            started: 0,
            ended: 0,
            producer_thread: None,
        };
        scenario.wait_for_assignments();
        scenario.start_producing();
        scenario
    }

    /// Waits until each consumer has partitions, so that no partition moves later.
    fn wait_for_assignments(&mut self) {
        let retry_interval = Duration::from_millis(300);
        let all_have_runs = || {
            let progress = self.history.progress();
            CONSUMERS.iter().all(|name| progress.runs_of(name).next().is_some()).then_some(())
        };
        while eventually(retry_interval, all_have_runs).is_none() {
            let first = self.keys;
            let payments = (0..PARTITIONS).map(|partition| {
                let payment = Payment::normal(first + partition as usize);
                payment.message(&self.topic, partition)
            });
            produce(&self.history.recorder, KAFKA.producer(), &self.topic, payments);
            self.keys += PARTITIONS as usize;
        }
    }

    /// Starts to fill the topic. One in ten records repeats the key of another, in any partition.
    /// Records are produced while earlier ones are processed, possibly at the same speed.
    fn start_producing(&mut self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let long_runs = (0..LONG_RUNS).map(|n| {
            let payment = Payment { id: long_run(n), work: Work::UntilReleased };
            payment.message(&self.topic, n)
        });
        let recorder = self.history.recorder.clone();
        produce(&recorder, KAFKA.producer(), &self.topic, long_runs);
        let records = env_u64("CAMPANILE_STORM_RECORDS").unwrap_or(DEFAULT_RECORDS) as usize;
        let keys = self.keys..self.keys + records / 10 * 9;
        let mut numbers: Vec<_> = keys.clone().collect();
        let repeated: Vec<_> = (keys.len()..records).map(|_| rng.usize(keys.clone())).collect();
        self.repeated = repeated.iter().map(|&number| Payment::normal(number).id).collect();
        numbers.extend(repeated);
        rng.shuffle(&mut numbers);
        let message = |number| {
            let partition = rng.i32(0..PARTITIONS);
            Payment::normal(number).message(&self.topic, partition)
        };
        let normal: Vec<_> = numbers.into_iter().map(message).collect();
        let topic = self.topic.clone();
        let produce = move || produce(&recorder, KAFKA.producer(), &topic, normal);
        self.producer_thread = Some(thread::spawn(produce));
        self.keys += keys.len();
    }

    /// Counts how many runs satisfy the condition.
    fn count(&self, condition: impl Fn(&Run) -> bool) -> usize {
        self.history.progress().runs().iter().filter(|run| condition(run)).count()
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
        self.count(|run| run.end == Some(How::Ok)) as f64 >= fraction * self.keys as f64
    }

    /// Starts the fault, if there is one that the consumers may notice, once this fraction of the keys is processed and the handlers that run
    /// throughout the fault have started.
    pub(crate) fn start_fault(&mut self, fraction: f64, fault: Option<FaultKind>) {
        let running = || self.count(|run| run.key().starts_with("throughout"));
        let ready =
            || (self.has_processed(fraction) && running() == LONG_RUNS as usize).then_some(());
        eventually(TIMEOUT, ready).expect("the load has started");
        self.started = self.history.recorder.now();
        self.fault = fault;
    }

    /// Ends the fault: the store can answer again.
    pub(crate) fn end_fault(&mut self) {
        self.ended = self.history.recorder.now();
        if let Some(kind) = self.fault.clone() {
            self.history.recorder.fault(self.started, Some(self.ended), kind);
        }
        self.release.send(true).expect("the consumers are serving");
    }

    /// Records that the store may have lost what it had acknowledged shortly before the fault, and
    /// for this long after its start, or until its end.
    pub(crate) fn writes_lost(&mut self, within: Option<Duration>) {
        let from = self.started - MAX_REPLICA_LAG.as_micros() as u64;
        let until = within.map_or(self.ended, |within| self.started + within.as_micros() as u64);
        self.history.recorder.fault(from, Some(until), FaultKind::StoreLostWrites);
        self.may_lose_writes = true;
    }

    /// Checks that a consumer hands back each attempt that a fault has interrupted. A history does
    /// not contain that no partition moves, so that no other consumer takes over the lock of a key
    /// with one record.
    fn check_attempts(&self, report: &mut Report) {
        if self.may_lose_writes {
            // A release may be lost, too.
            return;
        }
        let progress = self.history.progress();
        for run in progress.runs() {
            let may_be_taken_over = self.fault.is_some() && self.repeated.contains(run.key());
            let is_first = run.begin.attempt == Some(1) || may_be_taken_over;
            report.expect(is_first, || format!("an attempt of {} was counted: {run:?}", run.key()));
        }
    }

    /// Waits until every produced record is committed, and judges the history, which ends with the
    /// entries on these servers. Keys may have run again only for these causes.
    pub(crate) fn finish<'a>(
        mut self,
        servers: impl IntoIterator<Item = &'a RedisServer>,
        causes: &[Cause],
    ) -> Verdict {
        self.producer_thread.take().expect("the topic is being filled").join().unwrap();
        let config = KAFKA.consumer_config(&self.topic);
        group::wait_until_committed(&config, &self.topic, PARTITIONS, TIMEOUT);
        let consumers = std::mem::take(&mut self.consumers);
        let summaries: Vec<_> = consumers.into_iter().map(RunningConsumer::stop).collect();
        let recorder = &self.history.recorder;
        recorder.record_commits(&config, &self.topic).unwrap();
        let (since, entries) = (recorder.now(), store::read_entries(servers, NAMESPACE));
        let keys = (0..self.keys).map(|number| Payment::normal(number).id);
        for key in keys.chain((0..LONG_RUNS).map(long_run)) {
            recorder.entry(since, &key, entries.get(&key));
        }
        let mut report = self.history.judge(causes);
        for summary in summaries {
            // Nothing failed, and nothing was given up.
            let ended = summary.processed + summary.revoked + summary.unfinished;
            let is_ok = summary.retried == 0 && ended == summary.received;
            report.expect(is_ok, || format!("{summary:?}"));
        }
        self.check_attempts(&mut report);
        let fault = self.started..self.ended;
        let during = self.count(|run| fault.contains(&run.begin.at));
        let begins = self.history.progress();
        let next = begins.runs().iter().map(|run| run.begin.at).filter(|at| *at >= self.ended);
        let recovery = next.min().map(|at| Duration::from_micros(at - self.ended));
        report.finish(
            self.name,
            format_args!(
                "{during} begun in the {:?} of the fault, the next {recovery:?} after it (goal {:?}); \
                 seed {}",
                Duration::from_micros(self.ended - self.started),
                COMMAND_TIMEOUT * 3,
                self.seed,
            ),
        )
    }
}

/// The key of a handler that runs throughout the fault.
fn long_run(number: i32) -> String {
    format!("throughout-{number}")
}
