//! A topic, two consumers that process it, and a fault in the meantime.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use campanile::{Consumer, RedisConfig, RedisStore};
use campanile_test::{RedisServer, eventually};
use tokio::sync::watch;

use crate::ledger::{Ledger, Run, now};
use crate::serving::{Payment, Serving, Work};
use crate::verdict::{Cause, Fault, Verdict, by_key};
use crate::{KAFKA, LOCK_TTL, RECORDS, TIMEOUT, group, setting, store};

/// A record waits for its predecessor in the partition, so this is the number of records in flight.
const PARTITIONS: i32 = 48;
pub(crate) const NAMESPACE: &str = "storms";
const LONG: Duration = Duration::from_secs(120);

/// Number of handlers that run throughout the fault, each with its own key.
const THROUGHOUT: i32 = 6;

pub(crate) struct Storm {
    scene: &'static str,
    seed: u64,
    topic: String,
    /// One ledger per consumer.
    ledgers: [Ledger; 2],
    consumers: Vec<Serving>,
    records: usize,
    keys: usize,
    /// Keys with more than one record, possibly at the other consumer.
    repeated: HashSet<String>,
    tell: watch::Sender<bool>,
    fault: Option<Fault>,
    filling: Option<thread::JoinHandle<()>>,
}

/// Creates a configuration with a command timeout, for a Redis that must answer in time.
pub(crate) fn timed(config: impl Into<RedisConfig>) -> RedisConfig {
    config.into().with_command_timeout(TIMEOUT).unwrap()
}

impl Storm {
    /// Starts two consumers, each with its own store, and starts to fill their topic.
    pub(crate) fn begin(scene: &'static str, seed: u64, config: impl Fn() -> RedisConfig) -> Self {
        static TOPICS: AtomicU32 = AtomicU32::new(0);
        println!("{scene}: seed {seed}");
        let topic = format!("storm-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        KAFKA.create_topic(&topic, PARTITIONS, &[]).unwrap();
        let (tell, told) = watch::channel(false);
        let ledgers = [Ledger::default(), Ledger::default()];
        let serve = |ledger| {
            let mut settings = KAFKA.consumer_config(&topic);
            // A busy machine must not look like a fault of the storm.
            settings.set("session.timeout.ms", "20000");
            let consumer = Consumer::new(settings).unwrap().subscribe([topic.as_str()]);
            let connect = async { RedisStore::connect(config()).await.unwrap() };
            Serving::start(consumer, NAMESPACE, LOCK_TTL, connect, ledger, &told)
        };
        let consumers = ledgers.iter().map(serve).collect();
        let (records, keys, repeated, fault, filling) = (0, 0, HashSet::new(), None, None);
        let mut storm = Self {
            scene,
            seed,
            topic,
            ledgers,
            consumers,
            records,
            keys,
            repeated,
            tell,
            fault,
            filling,
        };
        storm.until_both_work();
        storm.fill();
        storm
    }

    /// Waits until each consumer has partitions, so that no partition moves later.
    fn until_both_work(&mut self) {
        let soon = Duration::from_millis(300);
        let works = |ledger: &Ledger| ledger.tell(|runs| !runs.is_empty());
        while eventually(soon, || self.ledgers.iter().all(works).then_some(())).is_none() {
            let first = self.keys;
            let payments = (0..PARTITIONS).map(|partition| {
                let payment = Payment::usual(first + partition as usize);
                payment.message(&self.topic, partition)
            });
            KAFKA.producer().produce_all(payments).unwrap();
            self.keys += PARTITIONS as usize;
            self.records += PARTITIONS as usize;
        }
    }

    /// Starts to fill the topic. One in ten records repeats the key of another, in any partition.
    /// Records are produced while earlier ones are processed, possibly at the same speed.
    fn fill(&mut self) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let throughout = (0..THROUGHOUT).map(|n| {
            let payment = Payment { id: format!("throughout-{n}"), work: Work::UntilTold };
            payment.message(&self.topic, n)
        });
        KAFKA.producer().produce_all(throughout).unwrap();
        let records = setting("CAMPANILE_STORM_RECORDS").unwrap_or(RECORDS) as usize;
        let keys = self.keys..self.keys + records / 10 * 9;
        let repeats = records - keys.len();
        let mut numbers: Vec<_> = keys.clone().collect();
        let repeated: Vec<_> = (0..repeats).map(|_| rng.usize(keys.clone())).collect();
        self.repeated = repeated.iter().map(|&number| Payment::usual(number).id).collect();
        numbers.extend(repeated);
        rng.shuffle(&mut numbers);
        let message = |number| {
            let partition = rng.i32(0..PARTITIONS);
            Payment::usual(number).message(&self.topic, partition)
        };
        let usual: Vec<_> = numbers.into_iter().map(message).collect();
        let produce = || drop(KAFKA.producer().produce_all(usual).unwrap());
        self.filling = Some(thread::spawn(produce));
        self.keys += keys.len() + THROUGHOUT as usize;
        self.records += records + THROUGHOUT as usize;
    }

    /// Counts how many runs satisfy the condition.
    fn count(&self, so: impl Fn(&Run) -> bool) -> usize {
        let count = |ledger: &Ledger| ledger.tell(|runs| runs.iter().filter(|r| so(r)).count());
        self.ledgers.iter().map(count).sum()
    }

    /// Repeats the action until this fraction of the keys is processed.
    pub(crate) fn until(&self, part: f64, mut act: impl FnMut()) {
        let done = || {
            act();
            self.is_done(part).then_some(())
        };
        eventually(LONG, done).expect("the keys are processed");
    }

    /// Checks whether this fraction of the keys is processed.
    fn is_done(&self, part: f64) -> bool {
        self.count(|run| run.ended().is_some()) as f64 >= part * self.keys as f64
    }

    /// Starts the fault once this fraction of the keys is processed and the handlers that run
    /// throughout the fault have started.
    pub(crate) fn begin_fault(&mut self, part: f64, cause: Cause) {
        let at_work = || self.count(|run| run.key.starts_with("throughout"));
        let ready = || (self.is_done(part) && at_work() == THROUGHOUT as usize).then_some(());
        eventually(LONG, ready).expect("the load has started");
        self.fault = Some(Fault { cause, begun: now(), over: Duration::MAX });
    }

    /// Ends the fault: the store can answer again.
    pub(crate) fn end_fault(&mut self) {
        self.fault.as_mut().expect("the fault has started").over = now();
        self.tell.send(true).expect("the consumers are serving");
    }

    /// Waits until every produced record is committed, and compares the handlers' runs with the
    /// entries on these servers.
    pub(crate) fn end<'a>(self, servers: impl IntoIterator<Item = &'a RedisServer>) -> Verdict {
        let Self { scene, seed, topic, ledgers, consumers, records, keys, repeated, fault, .. } =
            self;
        let fault = fault.expect("the fault has started");
        self.filling.expect("the topic is being filled").join().unwrap();
        group::wait_for_end(&KAFKA.consumer_config(&topic), &topic, PARTITIONS, LONG);
        let summaries: Vec<_> = consumers.into_iter().map(Serving::stop).collect();
        let entries = store::entries(servers, NAMESPACE);
        let by_key = by_key(&ledgers);
        let begun = by_key.values().flatten().map(|ran| ran.run.begun);
        let meanwhile = begun.clone().filter(|at| (fault.begun..fault.over).contains(at)).count();
        let first = begun.filter(|at| *at >= fault.over).min();
        let recovery = first.map_or("no".into(), |at| format!("{:?}", at - fault.over));

        let mut verdict = Verdict::of(&fault, keys, &repeated, &by_key, &entries, &summaries);
        let (twice, violations) = (verdict.twice, &verdict.violations);
        println!(
            "storm: {scene}: {records} records, {keys} keys, {twice} keys twice ({}), {} violations; \
             {meanwhile} begun in the {:?} of the fault, the next {recovery} after it (goal {:?}); \
             seed {seed}",
            fault.cause,
            violations.len(),
            fault.over - fault.begun,
            TIMEOUT * 3,
        );
        verdict.lost.iter_mut().for_each(|at| *at = at.saturating_sub(fault.begun));
        if let Some(last) = verdict.lost.iter().max() {
            let count = verdict.lost.len();
            println!("{count} completions were lost, the last of them {last:?} into the fault");
        }
        assert!(violations.is_empty(), "{violations:#?}");
        verdict
    }
}
