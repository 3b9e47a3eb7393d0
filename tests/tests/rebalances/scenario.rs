//! A topic that is filled, and the processes that consume it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use campanile::store::State;
use campanile_test::{KafkaServer, Message, Process, Producer, RedisServer, eventually};
use rdkafka::ClientConfig;
use tempfile::TempDir;

use crate::commits;
use crate::history::{History, RunEnd};
use crate::report::{Cause, Kill, Observations, Report, Suspension};
use crate::{boot_micros, env_or, group, seed, store, worker};

/// The namespace of the workers.
const NAMESPACE: &str = "payments";
const PARTITIONS: i32 = 32;
/// Record keys, each of which belongs to one partition.
const ACCOUNTS: usize = 512;
/// Batches produced per second.
const BATCHES_PER_SECOND: usize = 50;
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
    folder: TempDir,
    options: Vec<String>,
    pub(crate) members: Vec<Process>,
    producer_thread: Option<JoinHandle<()>>,
    records: usize,
    keys: usize,
    kills: Vec<Kill>,
    suspensions: Vec<Suspension>,
    violations: Vec<String>,
}

impl Scenario {
    /// Creates a topic without records and a group without members. The workers will get these
    /// options.
    pub(crate) fn new(name: &str, kafka: &KafkaServer, options: &[&str]) -> Self {
        static TOPICS: AtomicU32 = AtomicU32::new(0);
        let seed = seed();
        println!("{name}: seed {seed}");
        let topic = format!("rebalances-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        kafka.create_topic(&topic, PARTITIONS, &[]).unwrap();
        Self {
            name: name.into(),
            seed,
            rng: fastrand::Rng::with_seed(seed),
            bootstrap: kafka.bootstrap(),
            settings: kafka.consumer_config(&topic),
            topic,
            redis: RedisServer::start().unwrap(),
            folder: TempDir::new().unwrap(),
            options: options.iter().map(|&option| option.into()).collect(),
            members: Vec::new(),
            producer_thread: None,
            records: 0,
            keys: 0,
            kills: Vec::new(),
            suspensions: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Maximum number of members of the group.
    pub(crate) fn max_members() -> usize {
        env_or("CAMPANILE_REBALANCE_MEMBERS", 4) as usize
    }

    /// Starts to produce `records` records, `rate` per second, with a processing time from
    /// `work_ms`. One in twenty repeats the key of another record: half of the repeats belong to
    /// the same account, half to any account.
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
        let message = |(number, account): (usize, usize)| {
            let payload =
                serde_json::json!({ "id": format!("p-{number}"), "work_ms": work_ms(rng) });
            let partition = account as i32 % PARTITIONS;
            let message = Message::to(&self.topic).partition(partition);
            message.key(format!("a-{account}")).payload(payload.to_string())
        };
        let messages: Vec<_> = numbers.into_iter().map(message).collect();
        let producer = Producer::new(&self.bootstrap).unwrap();
        self.producer_thread = Some(thread::spawn(move || {
            for batch in messages.chunks(rate / BATCHES_PER_SECOND) {
                producer.produce_all(batch.iter().cloned()).unwrap();
                thread::sleep(Duration::from_secs(1) / BATCHES_PER_SECOND as u32);
            }
        }));
        (self.records, self.keys) = (records, keys);
    }

    pub(crate) fn has_produced_all(&self) -> bool {
        self.producer_thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Adds a member to the group.
    pub(crate) fn start_member(&mut self) {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let (bootstrap, topic, redis) = (&self.bootstrap, &self.topic, self.redis.url());
        let member = worker::spawn(bootstrap, topic, topic, &redis, &self.folder, &options);
        self.members.push(member);
    }

    /// Adds members until there are this many, and waits until each of them has started a handler.
    pub(crate) fn start_members(&mut self, members: usize) {
        while self.members.len() < members {
            self.start_member();
        }
        for member in &self.members {
            let pid = member.pid();
            let has_started = || (!self.history_of(pid).runs.is_empty()).then_some(());
            let log = || member.log().unwrap();
            eventually(TIMEOUT, has_started)
                .unwrap_or_else(|| panic!("process {pid} has started no handler: {}", log()));
        }
    }

    /// Picks a random member.
    pub(crate) fn random_member(&mut self) -> usize {
        self.rng.usize(..self.members.len())
    }

    /// Stops a member gracefully.
    pub(crate) fn stop_member(&mut self, member: usize) {
        let mut member = self.members.swap_remove(member);
        let exit_status = member.exited().unwrap();
        assert_eq!(exit_status, None, "the member exited on its own: {}", member.log().unwrap());
        let status = member.terminate().unwrap();
        assert!(status.success(), "{status}: {}", member.log().unwrap());
    }

    /// Kills a member. A lock is taken over only after it has expired, so the entries read here are
    /// as the kill left them.
    pub(crate) fn kill_member(&mut self, member: usize) {
        let mut member = self.members.swap_remove(member);
        member.kill().unwrap();
        let (pid, at) = (member.pid(), boot_micros());
        self.kills.push(Kill { pid, at, entries: self.entries() });
    }

    /// Kills a member at this moment of some key. The member is paused during the search, so that
    /// the kill hits the run that was found.
    pub(crate) fn kill_member_at(&mut self, phase: RunPhase) {
        let find_member = || {
            let member = self.random_member();
            self.members[member].pause().unwrap();
            if self.is_member_at(member, phase) {
                return Some(member);
            }
            self.members[member].resume().unwrap();
            None
        };
        let member =
            eventually(TIMEOUT, find_member).unwrap_or_else(|| panic!("no member is {phase:?}"));
        self.kill_member(member);
    }

    fn is_member_at(&self, member: usize, phase: RunPhase) -> bool {
        let (history, entries) = (self.history_of(self.members[member].pid()), self.entries());
        let is_held = |key: &str, token| {
            let entry = entries.get(key).filter(|entry| entry.state() == State::Processing);
            entry.is_some_and(|entry| entry.token().get() == token)
        };
        history.runs.iter().any(|(key, runs)| {
            runs.iter().any(|run| {
                let has_effect = run.effect.is_some();
                run.end == RunEnd::Unknown
                    && has_effect == (phase == RunPhase::EffectUnrecorded)
                    && is_held(key, run.token)
            })
        })
    }

    /// Suspends a member until the condition is met.
    pub(crate) fn suspend_until(&mut self, member: usize, until: impl Fn(&Self) -> bool) {
        let (pid, from) = (self.members[member].pid(), boot_micros());
        self.members[member].pause().unwrap();
        let reached = || until(self).then_some(());
        let result = eventually(TIMEOUT, reached);
        self.members[member].resume().unwrap();
        self.suspensions.push(Suspension { pid, from, to: boot_micros() });
        result.expect("the other members make progress");
    }

    /// Waits until the members answer another record.
    pub(crate) fn wait_for_progress(&self) {
        let answered = || self.history().answered.values().map(BTreeMap::len).sum::<usize>();
        let before = answered();
        eventually(TIMEOUT, || (answered() > before).then_some(())).expect("consumption continues");
    }

    /// Records a violation unless the condition holds.
    pub(crate) fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }

    pub(crate) fn random_pause(&mut self) -> Duration {
        let max_millis = env_or("CAMPANILE_REBALANCE_PAUSE_MS", 1_000);
        Duration::from_millis(self.rng.u64(max_millis / 8..max_millis))
    }

    /// Reads everything that all processes have logged so far.
    pub(crate) fn history(&self) -> History {
        History::read(&self.ledger_folder())
    }

    /// Reads everything that this process has logged so far.
    pub(crate) fn history_of(&self, pid: u32) -> History {
        History::read_process(&self.ledger_folder(), pid)
    }

    pub(crate) fn entries(&self) -> store::Entries {
        store::read_entries([&self.redis], NAMESPACE)
    }

    fn ledger_folder(&self) -> PathBuf {
        worker::ledger_folder(&self.folder)
    }

    /// Waits until every produced record is committed and stops every member. Then compares their
    /// ledgers with the state of Kafka and Redis.
    pub(crate) fn finish(mut self, cause: Cause) -> Report {
        self.producer_thread.take().expect("the topic was filled").join().unwrap();
        group::wait_until_committed(&self.settings, &self.topic, PARTITIONS, TIMEOUT);
        while !self.members.is_empty() {
            self.stop_member(0);
        }
        let observations = Observations {
            cause,
            records: self.records,
            keys: self.keys,
            history: self.history(),
            commits: commits::read(&self.settings, &self.topic),
            broker_clock_offset: unix_micros() - boot_micros(),
            entries: self.entries(),
            kills: self.kills,
            suspensions: self.suspensions,
        };
        let mut report = Report::evaluate(&observations);
        report.violations.append(&mut self.violations);
        let processes = fs::read_dir(worker::ledger_folder(&self.folder)).unwrap().count();
        println!(
            "storm: {}: {} records, {} keys, {} keys twice ({cause}), {} violations; {processes} \
             processes, {} commits, the longest stall {:?}; seed {}",
            self.name,
            self.records,
            self.keys,
            report.twice,
            report.violations.len(),
            observations.commits.len(),
            observations.history.longest_stall(),
            self.seed,
        );
        let shown = report.violations.iter().take(10).collect::<Vec<_>>();
        assert!(shown.is_empty(), "the first of {}: {shown:#?}", report.violations.len());
        report
    }
}

/// Reads the clock that brokers use, in microseconds.
#[expect(clippy::disallowed_methods, reason = "commits have no other time")]
fn unix_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    elapsed.as_micros() as u64
}
