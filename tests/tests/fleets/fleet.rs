//! A topic, and the processes that consume it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use campanile::FencingToken;
use campanile::store::{
    Command, Entry, Found, InspectStore, Operation, Owner, Reply, Retention, ScanCursor,
    ScanFilter, Store,
};
use campanile_admin::{AnyStore, StoreConfig};
use campanile_test::{Message, Process, eventually};
use campanile_tests::connect_before;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::history::{History, Run};
use crate::report::{self, Kill, Observations, Report};
use crate::{KAFKA, group, worker};

const PARTITIONS: i32 = 16;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The release of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Of before details existed.
    Before,
    Present,
}

pub(crate) struct Fleet {
    name: &'static str,
    seed: u64,
    rng: fastrand::Rng,
    runtime: Runtime,
    store: String,
    /// A store of before, connected all the time.
    store_before: AnyStore,
    topic: String,
    folder: TempDir,
    members: Vec<(Release, Process)>,
    releases: HashMap<u32, Release>,
    kills: Vec<Kill>,
    /// Not produced yet.
    messages: Vec<Message>,
    records: usize,
    keys: usize,
}

/// What is stored, read by the present reader.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) by_digest: HashMap<[u8; 16], Entry>,
    pub(crate) unreadable: usize,
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
        let message = |number| message(number, &topic, &mut rng);
        let messages = numbers.into_iter().map(message).collect();
        let runtime = Runtime::new().unwrap();
        let store_before = runtime.block_on(connect_before(&store)).unwrap();
        let mut fleet = Self {
            name,
            seed,
            messages,
            rng,
            runtime,
            store,
            store_before,
            topic,
            folder: TempDir::new().unwrap(),
            members: Vec::new(),
            releases: HashMap::new(),
            kills: Vec::new(),
            records,
            keys,
        };
        members.into_iter().for_each(|release| fleet.start_member(release));
        // A member that joins late gets none of the records that were produced before.
        let all_started = || {
            fleet.produce(PARTITIONS as usize);
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
        let exit_status = process.exited().unwrap();
        assert_eq!(exit_status, None, "{from:?} exited on its own: {}", process.log().unwrap());
        if self.releases.len().is_multiple_of(3) {
            process.kill().unwrap();
            // A lock is taken over only after it has expired, so these are the entries as the kill
            // left them.
            let kill = Kill { pid: process.pid(), entries: self.entries() };
            self.kills.push(kill);
        } else {
            let status = process.terminate().unwrap();
            assert!(status.success(), "{status}: {}", process.log().unwrap());
        }
        self.start_member(to);
    }

    /// Waits until every record is committed, stops every process, and judges what they did.
    pub(crate) fn finish(mut self) {
        self.produce(usize::MAX);
        let config = KAFKA.consumer_config(&self.topic);
        group::wait_until_committed(&config, &self.topic, PARTITIONS, TIMEOUT);
        for (_, mut member) in std::mem::take(&mut self.members) {
            let status = member.terminate().unwrap();
            assert!(status.success(), "{status}: {}", member.log().unwrap());
        }
        let history = History::read(&worker::ledger_folder(&self.folder));
        let entries = self.entries();
        let observations = Observations {
            keys: self.keys,
            unreadable_before: self.block_on(self.count_unreadable_before()),
            history: &history,
            entries: &entries,
            kills: &self.kills,
        };
        let report = Report::evaluate(&observations);
        let release = |run: &Run| self.releases[&run.pid];
        let is_crossed =
            |runs: &&Vec<Run>| runs.iter().any(|run| release(run) != release(&runs[0]));
        let crossed = history.runs.values().filter(is_crossed).count();
        println!(
            "storm: {}: {} records, {} keys, {} keys twice (at work in a process that was killed), {} \
             violations; {} lost, {} unreadable; {} processes, {} kills, {crossed} keys were run by \
             both releases; seed {}",
            self.name,
            self.records,
            self.keys,
            report.twice,
            report.violations.len(),
            report.lost,
            entries.unreadable + observations.unreadable_before,
            self.releases.len(),
            self.kills.len(),
            self.seed,
        );
        let shown = report.violations.iter().take(10).collect::<Vec<_>>();
        assert!(shown.is_empty(), "the first of {}: {shown:#?}", report.violations.len());
        for release in [Release::Before, Release::Present] {
            let has_run = |run: &Run| self.releases[&run.pid] == release;
            let ran = history.runs.values().flatten().any(has_run);
            assert!(ran, "no handler of release {release:?} has run");
        }
    }

    fn start_member(&mut self, release: Release) {
        let mut options = [worker::SHORT_SESSION, &["lock_ms=4000"]].concat();
        if release == Release::Before {
            options.push("release=before");
        }
        let (bootstrap, topic) = (KAFKA.bootstrap(), &self.topic);
        let member = worker::spawn(&bootstrap, topic, topic, &self.store, &self.folder, &options);
        self.releases.insert(member.pid(), release);
        self.members.push((release, member));
    }

    fn has_started(&self, member: &Process) -> bool {
        let history = History::read_process(&worker::ledger_folder(&self.folder), member.pid());
        !history.runs.is_empty()
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
        let messages = self.messages.drain(..count.min(self.messages.len()));
        KAFKA.producer().produce_all(messages).unwrap();
    }

    /// Counts the settled keys whose entries a process of before does not read as settled.
    async fn count_unreadable_before(&self) -> usize {
        let commands = (0..self.keys).map(|number| Command {
            key: report::store_key(number),
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
            for answer in self.store_before.apply_batch(batch.to_vec()).await {
                let reply = answer.unwrap().reply;
                let is_read =
                    matches!(reply, Reply::Duplicate { .. } | Reply::AlreadyGivenUp { .. });
                unreadable += usize::from(!is_read);
            }
        }
        unreadable
    }

    fn entries(&self) -> Entries {
        self.block_on(async {
            let store = self.store.parse::<StoreConfig>().unwrap().connect().await.unwrap();
            let filter = ScanFilter::new(report::namespace());
            let (mut entries, mut cursor) = (Entries::default(), Some(ScanCursor::default()));
            while let Some(from) = cursor {
                let page = store.scan(&filter, &from).await.unwrap();
                for (key, found) in page.entries {
                    match found {
                        Found::Entry { entry, .. } => {
                            entries.by_digest.insert(*key.digest(), entry);
                        }
                        _ => entries.unreadable += 1,
                    }
                }
                cursor = page.next;
            }
            entries
        })
    }
}

/// A record of the payment with this number. One payment in ten fails at first, and one in fifty
/// always.
fn message(number: usize, topic: &str, rng: &mut fastrand::Rng) -> Message {
    let failures = match number % 10 {
        _ if report::is_poison(number) => u32::MAX,
        3 => rng.u32(1..=2),
        _ => 0,
    };
    let id = report::id(number);
    let payload = serde_json::json!({ "id": id, "work_ms": rng.u64(1..10), "failures": failures });
    Message::to(topic).partition(rng.i32(0..PARTITIONS)).key(id).payload(payload.to_string())
}

/// Reads a number from the environment, for longer runs.
fn env_or(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}
