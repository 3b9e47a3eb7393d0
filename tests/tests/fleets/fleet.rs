//! A topic, and the processes that consume it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use campanile::key::Namespace;
use campanile::store::{Command, Operation, Owner, Reply, Retention, State, Store, StoreKey};
use campanile::{FencingToken, IdempotencyKey};
use campanile_admin::{AnyStore, StoreConfig};
use campanile_test::history::{Cause, Order};
use campanile_test::{Message, eventually};
use campanile_tests::connect_0_1;
use tokio::runtime::Runtime;

use crate::entries::{self, Entries};
use crate::history::{Payment, Report, TestHistory, produce};
use crate::length::env_or;
use crate::progress::Run;
use crate::worker::Worker;
use crate::{KAFKA, group};

const PARTITIONS: i32 = 16;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The interval at which records are produced while members start: so few that most are left.
const START_INTERVAL: Duration = Duration::from_millis(500);

/// The lock's time to live, and a session that is as long, so that a busy machine hardly ever misses
/// them.
const LOCK_TTL: Duration = Duration::from_secs(8);
const OPTIONS: [&str; 3] = ["lock_ms=8000", "session.timeout.ms=8000", "heartbeat.interval.ms=300"];

/// The namespace of the workers, and how often they try a payment.
const NAMESPACE: &str = "payments";
const MAX_ATTEMPTS: u16 = 8;

/// The release of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    V0_1,
    Present,
}

pub(crate) struct Fleet {
    name: &'static str,
    seed: u64,
    rng: fastrand::Rng,
    runtime: Runtime,
    store: String,
    /// The store of a process of 0.1, connected all the time.
    store_0_1: AnyStore,
    topic: String,
    history: TestHistory,
    members: Vec<(Release, Worker)>,
    /// The release of each process, by its name in the history.
    releases: HashMap<String, Release>,
    kills: usize,
    /// Not produced yet.
    payments: Vec<Payment>,
    records: usize,
    keys: usize,
}

impl Fleet {
    /// Starts these processes, and waits until each of them has started a handler.
    pub(crate) fn start(name: &'static str, store: String, members: [Release; 4]) -> Self {
        static TOPICS: AtomicU32 = AtomicU32::new(0);
        let seed = env_or("CAMPANILE_STORM_SEED", fastrand::u64(..));
        println!("{name}: seed {seed}");
        let topic = format!("fleet-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        KAFKA.create_topic(&topic, PARTITIONS, &[]).unwrap();
        let records = env_or("CAMPANILE_FLEET_RECORDS", 2_000) as usize;
        // One record in ten repeats the key of another, in any partition.
        let keys = records / 10 * 9;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut numbers: Vec<usize> = (0..keys).collect();
        numbers.extend((keys..records).map(|_| rng.usize(..keys)));
        rng.shuffle(&mut numbers);
        let payment = |number| payment(number, &topic, &mut rng);
        let payments = numbers.into_iter().map(payment).collect();
        let runtime = Runtime::new().unwrap();
        // Its answers may be late on a stalled machine.
        let config = store.parse::<StoreConfig>().unwrap().with_command_timeout(TIMEOUT);
        let store_0_1 = runtime.block_on(connect_0_1(config)).unwrap();
        let mut fleet = Self {
            name,
            seed,
            payments,
            rng,
            runtime,
            store,
            store_0_1,
            topic,
            history: TestHistory::new(Order::Partition, LOCK_TTL),
            members: Vec::new(),
            releases: HashMap::new(),
            kills: 0,
            records,
            keys,
        };
        members.into_iter().for_each(|release| fleet.start_member(release));
        // A member that joins late gets none of the records that were produced before.
        let all_started = || {
            fleet.produce(PARTITIONS as usize);
            thread::sleep(START_INTERVAL);
            fleet.members.iter().all(|(_, member)| fleet.has_started(member)).then_some(())
        };
        eventually(TIMEOUT, all_started).expect("every process starts a handler");
        fleet
    }

    /// The number of replacements.
    pub(crate) fn steps(&self) -> usize {
        (self.records / 1_000).max(6)
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Replaces a process by another, with records in flight: kills every third one, and stops the
    /// others gracefully.
    pub(crate) fn replace(&mut self, from: Release, to: Release) {
        self.produce_part();
        let candidates: Vec<usize> =
            (0..self.members.len()).filter(|&member| self.members[member].0 == from).collect();
        let member = *self.rng.choice(&candidates).expect("a process of the release");
        let (_, mut process) = self.members.swap_remove(member);
        process.expect_running();
        if self.releases.len().is_multiple_of(3) {
            let name = process.name().to_owned();
            process.kill(&self.history);
            let (since, entries) = (self.history.recorder.now(), self.entries());
            self.history.record_entries_after_kill(since, &name, |key| entries.get(key));
            self.kills += 1;
        } else {
            process.stop();
        }
        self.start_member(to);
    }

    /// Waits until every record is committed, stops every process, and judges what they did.
    pub(crate) fn finish(mut self) {
        self.produce(usize::MAX);
        let config = KAFKA.consumer_config(&self.topic);
        group::wait_until_committed(&config, &self.topic, PARTITIONS, TIMEOUT);
        for (_, member) in std::mem::take(&mut self.members) {
            member.stop();
        }
        let recorder = &self.history.recorder;
        recorder.record_commits(&config, &self.topic).unwrap();
        let (since, entries) = (recorder.now(), self.entries());
        for number in 0..self.keys {
            let key = id(number);
            recorder.entry(since, &key, entries.get(&key));
        }
        let causes = [Cause::Failed, Cause::KilledBeforeEffect, Cause::KilledAfterEffect];
        let mut report = self.history.judge(&causes);
        let unreadable = entries.unreadable + self.block_on(self.count_unreadable_by_0_1());
        report.expect(unreadable == 0, || format!("{unreadable} entries are unreadable"));
        self.check_poison(&mut report, &entries);
        let crossed = self.check_releases(&mut report);
        report.expect(crossed > 0, || "no key was run by both releases".to_owned());
        report.finish(
            self.name,
            format_args!(
                "{unreadable} entries unreadable; {} processes, {} kills, {crossed} keys were run by \
                 both releases; seed {}",
                self.releases.len(),
                self.kills,
                self.seed,
            ),
        );
    }

    /// Checks that the payments that always fail had no effect, and were given up.
    fn check_poison(&self, report: &mut Report, entries: &Entries) {
        let progress = self.history.progress();
        let with_effect: HashSet<&str> =
            progress.runs().iter().filter(|run| run.has_effect).map(Run::key).collect();
        for key in (0..self.keys).filter(|number| is_poison(*number)).map(id) {
            report.expect(!with_effect.contains(&*key), || format!("{key} has had an effect"));
            let entry = entries.get(&key);
            let is_given_up = entry.is_some_and(|entry| {
                let (state, attempt) = (entry.state(), entry.attempt());
                (state, attempt) == (State::Failed, MAX_ATTEMPTS) && entry.error().is_some()
            });
            report.expect(is_given_up, || format!("{key} was not given up: {entry:?}"));
        }
    }

    /// Checks that processes of both releases ran handlers. Counts the keys that both have run.
    fn check_releases(&self, report: &mut Report) -> usize {
        let mut by_key: HashMap<&str, HashSet<Release>> = HashMap::new();
        let progress = self.history.progress();
        for run in progress.runs() {
            by_key.entry(run.key()).or_default().insert(self.releases[&run.process]);
        }
        for release in [Release::V0_1, Release::Present] {
            let has_run = by_key.values().any(|releases| releases.contains(&release));
            report.expect(has_run, || format!("no handler of release {release:?} has run"));
        }
        by_key.values().filter(|releases| releases.len() > 1).count()
    }

    fn start_member(&mut self, release: Release) {
        let mut options = OPTIONS.to_vec();
        if release == Release::V0_1 {
            options.push("release=0.1");
        }
        let (bootstrap, topic) = (KAFKA.bootstrap(), &self.topic);
        let member = Worker::spawn(&bootstrap, topic, topic, &self.store, &self.history, &options);
        self.releases.insert(member.name().to_owned(), release);
        self.members.push((release, member));
    }

    fn has_started(&self, member: &Worker) -> bool {
        self.history.progress().runs_of(member.name()).next().is_some()
    }

    /// Produces the next part of the records, during some tenths of a second.
    pub(crate) fn produce_part(&mut self) {
        let batch = self.records / (self.steps() + 2) / 8;
        for _ in 0..8 {
            self.produce(batch);
            thread::sleep(Duration::from_millis(self.rng.u64(20..60)));
        }
    }

    /// Produces as many of the next records, or all that are left.
    fn produce(&mut self, count: usize) {
        let payments = self.payments.drain(..count.min(self.payments.len()));
        produce(&self.history.recorder, KAFKA.producer(), &self.topic, payments);
    }

    /// Counts the settled keys whose entries a process of 0.1 does not read as settled.
    async fn count_unreadable_by_0_1(&self) -> usize {
        let commands = (0..self.keys).map(|number| Command {
            key: store_key(&id(number)),
            operation: Operation::Acquire {
                owner: Owner::new(1).unwrap(),
                ttl: Duration::from_secs(1),
                max_attempts: 1,
                fingerprint: None,
                floor: FencingToken::ZERO,
                details: None,
            },
            retention: Retention::default(),
        });
        let mut unreadable = 0;
        for batch in commands.collect::<Vec<_>>().chunks(64) {
            for answer in self.store_0_1.apply_batch(batch.to_vec()).await {
                let reply = answer.unwrap().reply;
                let is_read =
                    matches!(reply, Reply::Duplicate { .. } | Reply::AlreadyGivenUp { .. });
                unreadable += usize::from(!is_read);
            }
        }
        unreadable
    }

    /// Reads what is stored, as a present process does.
    fn entries(&self) -> Entries {
        entries::read(&self.store, NAMESPACE)
    }
}

fn store_key(key: &str) -> StoreKey {
    let key = IdempotencyKey::new(key.to_owned()).unwrap();
    StoreKey::new(Namespace::try_from(NAMESPACE).unwrap(), &key)
}

fn id(number: usize) -> String {
    format!("p-{number}")
}

/// Whether all attempts of the payment fail.
fn is_poison(number: usize) -> bool {
    number % 50 == 7
}

/// A record of the payment with this number. One payment in ten fails at first, and one in fifty
/// always.
fn payment(number: usize, topic: &str, rng: &mut fastrand::Rng) -> Payment {
    let failures = match number % 10 {
        _ if is_poison(number) => u32::MAX,
        3 => rng.u32(1..=2),
        _ => 0,
    };
    let id = id(number);
    let payload = serde_json::json!({ "id": id, "work_ms": rng.u64(1..10), "failures": failures });
    let message = Message::to(topic).partition(rng.i32(0..PARTITIONS));
    (message.key(&*id).payload(payload.to_string()), id, None)
}
