//! Processes that are killed, suspended and fenced while they process a topic.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use campanile_test::{Process, RedisServer};
use tempfile::TempDir;

use crate::invoices::{self, Invoice};
use crate::{KAFKA, LONG, PARTITIONS, Topics, group};

const INSTANCES: usize = 2;
const ACCOUNTS: usize = 256;
/// For the classic protocol; in the newer one, the broker sets these.
const SOON_MISSED: &[&str] = &["session.timeout.ms=2000", "heartbeat.interval.ms=200"];
/// Records produced per second.
const RATE: usize = 1_000;

#[test]
fn whatever_is_killed_each_record_is_billed_once_and_in_the_order_of_its_account() {
    let of = |invoice: &Invoice| format!("{}@{}", invoice.partition, invoice.offset);
    storm("each record", &["group.protocol=consumer"], None, of);
}

#[test]
fn whatever_is_killed_each_key_is_billed_once_also_where_records_repeat_it() {
    let redis = RedisServer::start().unwrap();
    storm("each key", SOON_MISSED, Some(redis), |invoice| invoice.id.clone());
}

/// Runs a storm and checks that there is one invoice for each unit that `of` names.
fn storm(
    name: &str,
    options: &'static [&'static str],
    redis: Option<RedisServer>,
    of: impl Fn(&Invoice) -> String,
) {
    let records = setting("CAMPANILE_TRANSACTION_RECORDS", 20_000) as usize;
    let kills = setting("CAMPANILE_TRANSACTION_KILLS", 10);
    let seed = setting("CAMPANILE_STORM_SEED", fastrand::u64(..));
    println!("{name}: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let topics = Topics::create();
    let ended = Arc::new(AtomicBool::new(false));
    let filling = thread::spawn({
        let (topics, ended, rng) = (topics.clone(), ended.clone(), rng.fork());
        move || fill(&topics, records, &ended, rng)
    });

    let url = redis.as_ref().map_or_else(|| "none".to_owned(), RedisServer::url);
    let mut scene = Scene { topics, url, options, folder: TempDir::new().unwrap(), number: 0 };
    let mut members: Vec<Process> = (0..INSTANCES).map(|n| scene.start(n)).collect();
    let (mut fenced, mut stood_still) = (0, 0);
    for kill in 0..kills {
        thread::sleep(Duration::from_millis(rng.u64(300..1_500)));
        let instance = rng.usize(..INSTANCES);
        let member = &mut members[instance];
        match kill % 5 {
            // The process's partitions are reassigned, and its open transaction is not committed.
            1 => {
                member.pause().unwrap();
                thread::sleep(Duration::from_secs(4));
                member.resume().unwrap();
                stood_still += 1;
            }
            // Another process takes over the transactional id.
            2 => {
                let next = scene.start(instance);
                let status = member.wait(LONG).unwrap().expect("a fenced process exits");
                assert!(!status.success());
                let log = member.log().unwrap();
                assert!(log.contains("fenced"), "{log}");
                *member = next;
                fenced += 1;
            }
            _ => {
                member.kill().unwrap();
                *member = scene.start(instance);
            }
        }
    }
    ended.store(true, Ordering::Relaxed);
    let (records, keys) = filling.join().unwrap();
    let settings = KAFKA.consumer_config(&scene.topics.payments);
    group::wait_for_end(&settings, &scene.topics.payments, PARTITIONS, LONG);
    for mut member in members {
        let status = member.terminate().unwrap();
        assert!(status.success(), "{status}: {}", member.log().unwrap());
    }

    let invoices = invoices::read(&KAFKA, &scene.topics.invoices, "read_committed");
    let all = invoices::read(&KAFKA, &scene.topics.invoices, "read_uncommitted").len();
    let expected = if redis.is_some() { keys } else { records };
    let violations = invoices::violations(&invoices, expected, of);
    println!(
        "storm: transactions, {name}: {records} records, {keys} keys, {} violations; {kills} processes \
         ended or held, {stood_still} of them stood still and {fenced} were fenced, {} outputs were \
         aborted; seed {seed}",
        violations.len(),
        all - invoices.len(),
    );
    let shown: Vec<_> = violations.iter().take(10).collect();
    assert!(shown.is_empty(), "the first of {}: {shown:#?}", violations.len());
}

/// Produces at least `least` records, and until `ended` is set: a process learns that it is fenced
/// only when it commits. Returns the number of records and the number of keys.
fn fill(
    topics: &Topics,
    least: usize,
    ended: &AtomicBool,
    mut rng: fastrand::Rng,
) -> (usize, usize) {
    let (mut records, mut keys) = (0, 0);
    while records < least || !ended.load(Ordering::Relaxed) {
        let chunk: Vec<_> = (0..RATE / 10)
            .map(|_| {
                let id = if keys > 0 && rng.u8(..20) == 0 { rng.usize(..keys) } else { keys };
                keys = keys.max(id + 1);
                // A repeat may belong to another account, and so to another partition.
                topics.payment((id + rng.usize(..2)) % ACCOUNTS, id)
            })
            .collect();
        records += chunk.len();
        KAFKA.producer().produce_all(chunk).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    (records, keys)
}

struct Scene {
    topics: Topics,
    url: String,
    options: &'static [&'static str],
    folder: TempDir,
    number: u32,
}

impl Scene {
    /// Starts an instance, or restarts it.
    fn start(&mut self, instance: usize) -> Process {
        self.number += 1;
        let Topics { payments, invoices } = &self.topics;
        let mut command = Command::new(env!("CARGO_BIN_EXE_biller"));
        let id = format!("{payments}-{instance}");
        command.args([&KAFKA.bootstrap(), payments, payments, invoices, &id, &self.url]);
        // So short that a kill is likely to hit an open transaction.
        command.arg("interval_ms=20").args(self.options);
        Process::spawn(&command, self.folder.path().join(format!("log-{}", self.number))).unwrap()
    }
}

/// Reads a number from the environment, for longer runs.
fn setting(name: &str, usual: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}
