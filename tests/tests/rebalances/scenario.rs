//! A topic that is filled, and the processes that consume it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use campanile::store::State;
use campanile_test::history::{Cause, Order, Verdict};
use campanile_test::{KafkaServer, Message, Producer, RedisServer, eventually};
use rdkafka::ClientConfig;

use crate::history::{Report, TestHistory, produce};
use crate::progress::Run;
use crate::worker::Worker;
use crate::{env_or, group, seed, store};

/// The namespace of the workers.
const NAMESPACE: &str = "payments";
const PARTITIONS: i32 = 32;
/// Record keys, each of which belongs to one partition.
const ACCOUNTS: usize = 512;
/// Batches produced per second.
const BATCHES_PER_SECOND: usize = 50;
/// What is produced while members start: so little that the last of them gets some records, too.
const STARTING_BATCH: usize = 30;
const STARTING_INTERVAL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(120);

/// The progress of a process on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// The handler runs and has not had its effect.
    BeforeEffect,
    /// The handler has had its effect, which is not recorded.
    EffectUnrecorded,
}

pub(crate) struct Scenario {
    name: String,
    seed: u64,
    pub(crate) rng: fastrand::Rng,
    bootstrap: String,
    settings: ClientConfig,
    topic: String,
    redis: RedisServer,
    options: Vec<String>,
    pub(crate) history: TestHistory,
    pub(crate) members: Vec<Worker>,
    /// The number of members so far.
    processes: usize,
    /// Returns the keys that were produced.
    producer_thread: Option<JoinHandle<HashSet<String>>>,
    produces: Arc<AtomicBool>,
    /// Whether members are starting, or have not been started yet.
    is_starting: Arc<AtomicBool>,
}

impl Scenario {
    /// Creates a topic without records and a group without members. The workers process records by
    /// key, with locks of this time to live, and with these options.
    pub(crate) fn new(name: &str, kafka: &KafkaServer, lock_ms: u64, options: &[&str]) -> Self {
        static TOPICS: AtomicU32 = AtomicU32::new(0);
        let seed = seed();
        println!("{name}: seed {seed}");
        let topic = format!("rebalances-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        kafka.create_topic(&topic, PARTITIONS, &[]).unwrap();
        let mut all_options = vec!["order=key".to_owned(), format!("lock_ms={lock_ms}")];
        all_options.extend(options.iter().map(|&option| option.into()));
        Self {
            name: name.into(),
            seed,
            rng: fastrand::Rng::with_seed(seed),
            bootstrap: kafka.bootstrap(),
            settings: kafka.consumer_config(&topic),
            topic,
            redis: RedisServer::start().unwrap(),
            options: all_options,
            history: TestHistory::new(Order::Key, Duration::from_millis(lock_ms)),
            members: Vec::new(),
            processes: 0,
            producer_thread: None,
            produces: Arc::new(AtomicBool::new(true)),
            is_starting: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Maximum number of members of the group.
    pub(crate) fn max_members() -> usize {
        env_or("CAMPANILE_REBALANCE_MEMBERS", 4) as usize
    }

    /// Starts to produce at most `records` records, `rate` per second unless members are starting,
    /// with a processing time from `work_ms`. One in twenty repeats the key of another record: half
    /// of the repeats belong to the same account, half to any account.
    pub(crate) fn start_producing(
        &mut self,
        records: usize,
        rate: usize,
        work_ms: impl Fn(&mut fastrand::Rng) -> u64,
    ) {
        let (keys, rng) = (records - records / 20, &mut self.rng);
        let mut numbers: Vec<_> = (0..keys).map(|number| (number, number % ACCOUNTS)).collect();
        numbers.extend((keys..records).map(|_| {
            let number = rng.usize(..keys);
            (number, if rng.bool() { number % ACCOUNTS } else { rng.usize(..ACCOUNTS) })
        }));
        rng.shuffle(&mut numbers);
        let payment = |(number, account): (usize, usize)| {
            let (key, account_key) = (format!("p-{number}"), format!("a-{account}"));
            let payload = serde_json::json!({ "id": key, "work_ms": work_ms(rng) });
            let message = Message::to(&self.topic).partition(account as i32 % PARTITIONS);
            (message.key(&*account_key).payload(payload.to_string()), key, Some(account_key))
        };
        let payments: Vec<_> = numbers.into_iter().map(payment).collect();
        let producer = Producer::new(&self.bootstrap).unwrap();
        let (recorder, topic) = (self.history.recorder.clone(), self.topic.clone());
        let (produces, is_starting) = (self.produces.clone(), self.is_starting.clone());
        self.producer_thread = Some(thread::spawn(move || {
            let (mut produced, mut left) = (HashSet::new(), &*payments);
            while !left.is_empty() && produces.load(Ordering::Relaxed) {
                let (size, interval) = if is_starting.load(Ordering::Relaxed) {
                    (STARTING_BATCH, STARTING_INTERVAL)
                } else {
                    let interval = Duration::from_secs(1) / BATCHES_PER_SECOND as u32;
                    (rate / BATCHES_PER_SECOND, interval)
                };
                let (batch, rest) = left.split_at(size.min(left.len()));
                produce(&recorder, &producer, &topic, batch.iter().cloned());
                produced.extend(batch.iter().map(|(_, key, _)| key.clone()));
                left = rest;
                thread::sleep(interval);
            }
            produced
        }));
    }

    /// Produces no more records.
    pub(crate) fn stop_producing(&self) {
        self.produces.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_produced_all(&self) -> bool {
        self.producer_thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Adds a member to the group.
    pub(crate) fn start_member(&mut self) {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let (bootstrap, topic, redis) = (&self.bootstrap, &self.topic, self.redis.url());
        let member = Worker::spawn(bootstrap, topic, topic, &redis, &self.history, &options);
        self.members.push(member);
        self.processes += 1;
    }

    /// Adds members until there are this many, and waits until each of them has started a handler.
    pub(crate) fn start_members(&mut self, members: usize) {
        self.is_starting.store(true, Ordering::Relaxed);
        while self.members.len() < members {
            self.start_member();
        }
        for member in &self.members {
            let has_started = || self.history.progress().runs_of(member.name()).next().map(drop);
            eventually(TIMEOUT, has_started).unwrap_or_else(|| {
                panic!("{} has started no handler: {}", member.name(), member.log())
            });
        }
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// Picks a random member.
    pub(crate) fn random_member(&mut self) -> usize {
        self.rng.usize(..self.members.len())
    }

    /// Stops a member gracefully.
    pub(crate) fn stop_member(&mut self, member: usize) {
        self.members.swap_remove(member).stop();
    }

    /// Kills a member.
    pub(crate) fn kill_member(&mut self, member: usize) {
        let member = self.members.swap_remove(member);
        let name = member.name().to_owned();
        member.kill(&self.history);
        let (since, entries) = (self.history.recorder.now(), self.entries());
        self.history.record_entries_after_kill(since, &name, |key| entries.get(key));
    }

    /// Kills a member at this moment of some key.
    pub(crate) fn kill_member_at(&mut self, phase: RunPhase) {
        let member = self.pause_member_at(phase);
        self.kill_member(member);
    }

    /// Pauses a member at this moment of some key. Members are paused during the search, so that the
    /// one that is found is still at that moment.
    pub(crate) fn pause_member_at(&mut self, phase: RunPhase) -> usize {
        let find_member = || {
            let member = self.random_member();
            self.members[member].pause(&self.history);
            if self.is_member_at(member, phase) {
                return Some(member);
            }
            self.members[member].resume(&self.history);
            None
        };
        eventually(TIMEOUT, find_member).unwrap_or_else(|| panic!("no member is {phase:?}"))
    }

    fn is_member_at(&self, member: usize, phase: RunPhase) -> bool {
        let (progress, entries) = (self.history.progress(), self.entries());
        let is_held = |run: &Run| {
            let entry = entries.get(run.key()).filter(|entry| entry.state() == State::Processing);
            entry.is_some_and(|entry| run.has_token(entry))
        };
        let is_at = |run: &Run| match phase {
            RunPhase::BeforeEffect => !run.has_effect && run.end.is_none(),
            RunPhase::EffectUnrecorded => run.has_effect && !run.is_answered,
        };
        progress.runs_of(self.members[member].name()).any(|run| is_at(run) && is_held(run))
    }

    /// Resumes a paused member once the condition is met.
    pub(crate) fn resume_once(&mut self, member: usize, until: impl Fn(&Self) -> bool) {
        let reached = || until(self).then_some(());
        let result = eventually(TIMEOUT, reached);
        self.members[member].resume(&self.history);
        result.expect("the other members make progress");
    }

    /// Waits until the members answer another record.
    pub(crate) fn wait_for_progress(&self) {
        let answered = || self.history.progress().answered();
        let before = answered();
        eventually(TIMEOUT, || (answered() > before).then_some(())).expect("consumption continues");
    }

    pub(crate) fn random_pause(&mut self) -> Duration {
        let max_millis = env_or("CAMPANILE_REBALANCE_PAUSE_MS", 1_000);
        Duration::from_millis(self.rng.u64(max_millis / 8..max_millis))
    }

    pub(crate) fn entries(&self) -> store::Entries {
        store::read_entries([&self.redis], NAMESPACE)
    }

    /// Waits until every produced record is committed and stops every member. Then judges the
    /// history, in which keys may run again only for these causes.
    pub(crate) fn judge(&mut self, causes: &[Cause]) -> Report {
        let keys = self.producer_thread.take().expect("the topic was filled").join().unwrap();
        group::wait_until_committed(&self.settings, &self.topic, PARTITIONS, TIMEOUT);
        while !self.members.is_empty() {
            self.stop_member(0);
        }
        let recorder = &self.history.recorder;
        recorder.record_commits(&self.settings, &self.topic).unwrap();
        let (since, entries) = (recorder.now(), self.entries());
        for key in &keys {
            recorder.entry(since, key, entries.get(key));
        }
        self.history.judge(causes)
    }

    /// Prints the line of the storm, and fails if there is a violation.
    pub(crate) fn finish(self, report: Report) -> Verdict {
        let longest_stall = self.history.progress().longest_stall();
        report.finish(
            &self.name,
            format_args!(
                "{} processes, the longest stall {longest_stall:.1?}; seed {}",
                self.processes, self.seed
            ),
        )
    }
}
