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
use crate::history::{History, Over};
use crate::verdict::{Cause, Evidence, Kill, Stop, Verdict};
use crate::{group, now, seed, setting, store, worker};

/// The namespace of the workers.
const NAMESPACE: &str = "payments";
const PARTITIONS: i32 = 32;
/// Record keys, each of which belongs to one partition.
const ACCOUNTS: usize = 512;
/// Batches produced per second.
const CHUNKS: usize = 50;
const LONG: Duration = Duration::from_secs(120);

/// The progress of a process on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The handler runs and has not had its effect.
    AtWork,
    /// The handler has had its effect, which is not recorded.
    Unrecorded,
}

pub(crate) struct Scene {
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
    filling: Option<JoinHandle<()>>,
    records: usize,
    keys: usize,
    kills: Vec<Kill>,
    stops: Vec<Stop>,
    violations: Vec<String>,
}

impl Scene {
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
            filling: None,
            records: 0,
            keys: 0,
            kills: Vec::new(),
            stops: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Maximum number of members of the group.
    pub(crate) fn size() -> usize {
        setting("CAMPANILE_REBALANCE_MEMBERS", 4) as usize
    }

    /// Starts to produce `records` records, `rate` per second, with a processing time from
    /// `work_ms`. One in twenty repeats the key of another record: half of the repeats belong to
    /// the same account, half to any account.
    pub(crate) fn fill(
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
        self.filling = Some(thread::spawn(move || {
            for chunk in messages.chunks(rate / CHUNKS) {
                producer.produce_all(chunk.iter().cloned()).unwrap();
                thread::sleep(Duration::from_secs(1) / CHUNKS as u32);
            }
        }));
        (self.records, self.keys) = (records, keys);
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filling.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Adds a member to the group.
    pub(crate) fn start(&mut self) {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let (bootstrap, topic) = (&self.bootstrap, &self.topic);
        let member = worker::spawn(bootstrap, topic, topic, &self.redis, &self.folder, &options);
        self.members.push(member);
    }

    /// Adds members until there are this many, and waits until each of them has started a handler.
    pub(crate) fn start_all(&mut self, members: usize) {
        while self.members.len() < members {
            self.start();
        }
        for member in &self.members {
            let pid = member.pid();
            let begun = || (!self.of(pid).runs.is_empty()).then_some(());
            let log = || member.log().unwrap();
            eventually(LONG, begun)
                .unwrap_or_else(|| panic!("process {pid} has started no handler: {}", log()));
        }
    }

    /// Picks a random member.
    pub(crate) fn any(&mut self) -> usize {
        self.rng.usize(..self.members.len())
    }

    /// Stops a member gracefully.
    pub(crate) fn stop(&mut self, member: usize) {
        let mut member = self.members.swap_remove(member);
        let ended = member.exited().unwrap();
        assert_eq!(ended, None, "the member exited on its own: {}", member.log().unwrap());
        let status = member.terminate().unwrap();
        assert!(status.success(), "{status}: {}", member.log().unwrap());
    }

    /// Kills a member. A lock is taken over only after it has expired, so the entries read here are
    /// as the kill left them.
    pub(crate) fn kill(&mut self, member: usize) {
        let mut member = self.members.swap_remove(member);
        member.kill().unwrap();
        let (pid, at) = (member.pid(), now());
        self.kills.push(Kill { pid, at, entries: self.entries() });
    }

    /// Kills a member at this moment of some key. The member is paused during the search, so that
    /// the kill hits the run that was found.
    pub(crate) fn kill_at(&mut self, moment: Moment) {
        let look = || {
            let member = self.any();
            self.members[member].pause().unwrap();
            if self.is_at(member, moment) {
                return Some(member);
            }
            self.members[member].resume().unwrap();
            None
        };
        let member = eventually(LONG, look).unwrap_or_else(|| panic!("no member is {moment:?}"));
        self.kill(member);
    }

    fn is_at(&self, member: usize, moment: Moment) -> bool {
        let (history, entries) = (self.of(self.members[member].pid()), self.entries());
        let is_held = |key: &str, token| {
            let entry = entries.get(key).filter(|entry| entry.state() == State::Processing);
            entry.is_some_and(|entry| entry.token().get() == token)
        };
        history.runs.iter().any(|(key, runs)| {
            runs.iter().any(|run| {
                let has_had_its_effect = run.effect.is_some();
                run.over == Over::Unknown
                    && has_had_its_effect == (moment == Moment::Unrecorded)
                    && is_held(key, run.token)
            })
        })
    }

    /// Suspends a member until the condition is met.
    pub(crate) fn stand_still(&mut self, member: usize, until: impl Fn(&Self) -> bool) {
        let (pid, from) = (self.members[member].pid(), now());
        self.members[member].pause().unwrap();
        let so = || until(self).then_some(());
        let so = eventually(LONG, so);
        self.members[member].resume().unwrap();
        self.stops.push(Stop { pid, from, to: now() });
        so.expect("the other members make progress");
    }

    /// Waits until the members answer another record.
    pub(crate) fn until_more_is_answered(&self) {
        let answered = || self.history().answered.values().map(BTreeMap::len).sum::<usize>();
        let now = answered();
        eventually(LONG, || (answered() > now).then_some(())).expect("consumption continues");
    }

    /// Records a violation unless the condition holds.
    pub(crate) fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let most = setting("CAMPANILE_REBALANCE_PAUSE_MS", 1_000);
        Duration::from_millis(self.rng.u64(most / 8..most))
    }

    /// Reads everything that all processes have logged so far.
    pub(crate) fn history(&self) -> History {
        History::read(&self.ledgers())
    }

    /// Reads everything that this process has logged so far.
    pub(crate) fn of(&self, pid: u32) -> History {
        History::of(&self.ledgers(), pid)
    }

    pub(crate) fn entries(&self) -> store::Entries {
        store::entries([&self.redis], NAMESPACE)
    }

    fn ledgers(&self) -> PathBuf {
        worker::ledgers(&self.folder)
    }

    /// Waits until every produced record is committed and stops every member. Then compares their
    /// ledgers with the state of Kafka and Redis.
    pub(crate) fn end(mut self, cause: Cause) -> Verdict {
        self.filling.take().expect("the topic was filled").join().unwrap();
        group::wait_for_end(&self.settings, &self.topic, PARTITIONS, LONG);
        while !self.members.is_empty() {
            self.stop(0);
        }
        let evidence = Evidence {
            cause,
            records: self.records,
            keys: self.keys,
            history: self.history(),
            commits: commits::read(&self.settings, &self.topic),
            ahead: unix() - now(),
            entries: self.entries(),
            kills: self.kills,
            stops: self.stops,
        };
        let mut verdict = Verdict::of(&evidence);
        verdict.violations.append(&mut self.violations);
        let processes = fs::read_dir(worker::ledgers(&self.folder)).unwrap().count();
        println!(
            "storm: {}: {} records, {} keys, {} keys twice ({cause}), {} violations; {processes} \
             processes, {} commits, the longest stall {:?}; seed {}",
            self.name,
            self.records,
            self.keys,
            verdict.twice,
            verdict.violations.len(),
            evidence.commits.len(),
            evidence.history.longest_stall(),
            self.seed,
        );
        let shown = verdict.violations.iter().take(10).collect::<Vec<_>>();
        assert!(shown.is_empty(), "the first of {}: {shown:#?}", verdict.violations.len());
        verdict
    }
}

/// Reads the clock that brokers use, in microseconds.
#[expect(clippy::disallowed_methods, reason = "commits have no other time")]
fn unix() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_micros() as u64
}
