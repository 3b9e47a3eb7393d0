//! Processes that are killed, suspended and fenced while they process a topic.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use campanile_test::{Process, RedisServer, eventually};
use tempfile::TempDir;

use crate::invoices::{self, Invoice};
use crate::{KAFKA, PARTITIONS, TIMEOUT, Topics, group};

const INSTANCES: usize = 2;
const ACCOUNTS: usize = 256;
/// For the classic protocol; in the newer one, the broker sets these.
const SHORT_SESSION: &[&str] = &["session.timeout.ms=2000", "heartbeat.interval.ms=200"];
/// Records produced per second.
const RECORDS_PER_SECOND: usize = 1_000;

#[test]
fn process_faults_bill_each_record_once_in_account_order() {
    let unit_of = |invoice: &Invoice| format!("{}@{}", invoice.partition, invoice.offset);
    run_with_faults("each record", &["group.protocol=consumer"], None, unit_of);
}

#[test]
fn process_faults_bill_each_key_once_despite_repeats() {
    let redis = RedisServer::start().unwrap();
    run_with_faults("each key", SHORT_SESSION, Some(redis), |invoice| invoice.id.clone());
}

/// Injects faults into processes and checks that there is one invoice for each unit that `unit_of` names.
fn run_with_faults(
    name: &str,
    options: &'static [&'static str],
    redis: Option<RedisServer>,
    unit_of: impl Fn(&Invoice) -> String,
) {
    let records = env_or("CAMPANILE_TRANSACTION_RECORDS", 20_000) as usize;
    let kills = env_or("CAMPANILE_TRANSACTION_KILLS", 10);
    let seed = env_or("CAMPANILE_STORM_SEED", fastrand::u64(..));
    println!("{name}: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let topics = Topics::create();
    // Also set if an assertion fails, so that the producer's thread ends.
    let faults_done = SetOnDrop(Arc::new(AtomicBool::new(false)));
    let producer_thread = thread::spawn({
        let (topics, faults_done, rng) = (topics.clone(), faults_done.0.clone(), rng.fork());
        move || produce_until(&topics, records, &faults_done, rng)
    });

    let url = redis.as_ref().map_or_else(|| "none".to_owned(), RedisServer::url);
    let mut launcher =
        Launcher { topics, url, options, folder: TempDir::new().unwrap(), starts: 0 };
    let mut members: Vec<Process> = (0..INSTANCES).map(|n| launcher.start(n)).collect();
    let (mut fenced, mut suspended) = (0, 0);
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
                suspended += 1;
            }
            // Another process takes over the transactional id. A member that replaces its producer after
            // an abort just then takes the id back, and fences the other process instead.
            2 => {
                let mut successor = launcher.start(instance);
                let exits = || {
                    let exited = member.exited().transpose().map(|status| (status, false));
                    exited.or_else(|| Some((successor.exited().transpose()?, true)))
                };
                let Some((status, is_successor)) = eventually(TIMEOUT, exits) else {
                    let (log, other) = (member.log().unwrap(), successor.log().unwrap());
                    panic!("neither process was fenced; they logged: {log}; {other}");
                };
                if !is_successor {
                    std::mem::swap(member, &mut successor);
                }
                // The one that exits is `successor` now.
                let log = successor.log().unwrap();
                assert!(!status.unwrap().success() && log.contains("fenced"), "{log}");
                println!(
                    "fenced: {}",
                    if is_successor { "the successor" } else { "the former process" }
                );
                fenced += 1;
            }
            _ => {
                member.kill().unwrap();
                *member = launcher.start(instance);
            }
        }
    }
    drop(faults_done);
    let (records, keys) = producer_thread.join().unwrap();
    let settings = KAFKA.consumer_config(&launcher.topics.payments);
    group::wait_until_committed(&settings, &launcher.topics.payments, PARTITIONS, TIMEOUT);
    for mut member in members {
        let status = member.terminate().unwrap();
        assert!(status.success(), "{status}: {}", member.log().unwrap());
    }

    let invoices = invoices::read(&KAFKA, &launcher.topics.invoices, "read_committed");
    let all = invoices::read(&KAFKA, &launcher.topics.invoices, "read_uncommitted").len();
    let expected = if redis.is_some() { keys } else { records };
    let violations = invoices::violations(&invoices, expected, unit_of);
    println!(
        "storm: transactions, {name}: {records} records, {keys} keys, {} violations; {kills} processes \
         ended or held, {suspended} of them stood still and {fenced} were fenced, {} outputs were \
         aborted; seed {seed}",
        violations.len(),
        all - invoices.len(),
    );
    let shown: Vec<_> = violations.iter().take(10).collect();
    assert!(shown.is_empty(), "the first of {}: {shown:#?}", violations.len());
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Produces at least `min_records` records, and until `faults_done` is set: a process learns that
/// it is fenced only when it commits. Counts the records and the keys.
fn produce_until(
    topics: &Topics,
    min_records: usize,
    faults_done: &AtomicBool,
    mut rng: fastrand::Rng,
) -> (usize, usize) {
    let (mut records, mut keys) = (0, 0);
    while records < min_records || !faults_done.load(Ordering::Relaxed) {
        let chunk: Vec<_> = (0..RECORDS_PER_SECOND / 10)
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

struct Launcher {
    topics: Topics,
    url: String,
    options: &'static [&'static str],
    folder: TempDir,
    starts: u32,
}

impl Launcher {
    /// Starts an instance, or restarts it.
    fn start(&mut self, instance: usize) -> Process {
        self.starts += 1;
        let Topics { payments, invoices } = &self.topics;
        let mut command = Command::new(env!("CARGO_BIN_EXE_biller"));
        let id = format!("{payments}-{instance}");
        command.args([&KAFKA.bootstrap(), payments, payments, invoices, &id, &self.url]);
        // So short that a kill is likely to hit an open transaction.
        command.arg("interval_ms=20").args(self.options);
        Process::spawn(&command, self.folder.path().join(format!("log-{}", self.starts))).unwrap()
    }
}

/// Reads a number from the environment, for longer runs.
fn env_or(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}
