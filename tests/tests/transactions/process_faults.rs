//! Processes that are killed, suspended and fenced while they process a topic.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use campanile_test::history::{Cause, HistoryRecorder, Order, Transactions};
use campanile_test::{RedisServer, eventually};

use crate::history::TestHistory;
use crate::invoices::Invoice;
use crate::length::env_or;
use crate::worker::Worker;
use crate::{KAFKA, PARTITIONS, TIMEOUT, Topics, group, history, invoices, store};

const INSTANCES: usize = 2;
const ACCOUNTS: usize = 256;
/// For the classic protocol; in the newer one, the broker sets these.
const SHORT_SESSION: &[&str] = &["session.timeout.ms=5000", "heartbeat.interval.ms=200"];
/// The lock's time to live in the consumers. A busy machine hardly ever delays its renewal for so long.
const LOCK_TTL: Duration = Duration::from_secs(6);
/// Records produced per second.
const RECORDS_PER_SECOND: usize = 1_000;

#[test]
fn process_faults_bill_each_record_once_in_account_order() {
    run_with_faults("each record", &["group.protocol=consumer"], None, &[Cause::Unguarded]);
}

#[test]
fn process_faults_bill_each_key_once_despite_repeats() {
    let redis = RedisServer::start().unwrap();
    let killed = [Cause::KilledAfterEffect, Cause::KilledBeforeEffect];
    let causes = [&killed[..], &[Cause::Suspended, Cause::Dropped]].concat();
    run_with_faults("each key", SHORT_SESSION, Some(redis), &causes);
}

/// Injects faults into processes, and judges their history. Keys may be processed again only for these
/// causes.
fn run_with_faults(
    name: &str,
    options: &'static [&'static str],
    redis: Option<RedisServer>,
    causes: &[Cause],
) {
    let records = env_or("CAMPANILE_TRANSACTION_RECORDS", 20_000) as usize;
    let kills = env_or("CAMPANILE_TRANSACTION_KILLS", 10);
    let seed = env_or("CAMPANILE_STORM_SEED", fastrand::u64(..));
    println!("{name}: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let topics = Topics::create();
    let transactions = Some(Transactions::Broker);
    let history = TestHistory::with_transactions(Order::Key, LOCK_TTL, transactions);
    let has_keys = redis.is_some();
    // Also set if an assertion fails, so that the producer's thread ends.
    let faults_done = SetOnDrop(Arc::new(AtomicBool::new(false)));
    let producer_thread = thread::spawn({
        let (topics, faults_done, rng) = (topics.clone(), faults_done.0.clone(), rng.fork());
        let recorder = history.recorder.clone();
        move || produce_until(&topics, &recorder, has_keys, records, &faults_done, rng)
    });

    let url = redis.as_ref().map_or_else(|| "none".to_owned(), RedisServer::url);
    let launcher = Launcher { topics, url, options, history: &history };
    let mut members: Vec<Worker> = (0..INSTANCES).map(|n| launcher.start(n)).collect();
    let (mut fenced, mut suspended) = (0, 0);
    for kill in 0..kills {
        thread::sleep(Duration::from_millis(rng.u64(300..2_000)));
        let instance = rng.usize(..INSTANCES);
        let member = &mut members[instance];
        match kill % 5 {
            // The process's partitions are reassigned, and its open transaction is not committed. It
            // continues when the other process handles one of its records, or a record with the same key,
            // whose lock it has lost.
            1 => {
                let running = eventually(TIMEOUT, || member.pause_running(&history));
                let running = running.expect("a handler runs");
                let is_retaken = || {
                    let progress = history.progress();
                    let later = progress
                        .runs()
                        .iter()
                        .filter(|run| run.begin.at > running.at && run.process != member.name());
                    let mut same = later.filter(|run| match &running.key {
                        Some(_) => run.begin.key == running.key,
                        None => run.begin.record == running.record,
                    });
                    same.next().map(drop)
                };
                eventually(TIMEOUT, is_retaken).expect("the other process handles the record");
                member.resume(&history);
                suspended += 1;
            }
            // Another process takes over the transactional id. A member that replaces its producer after
            // an abort just then takes the id back, and fences the other process instead.
            2 => {
                let mut successor = launcher.start(instance);
                let exits = || {
                    let exited = member.exited().map(|status| (status, false));
                    exited.or_else(|| Some((successor.exited()?, true)))
                };
                let Some((status, is_successor)) = eventually(TIMEOUT, exits) else {
                    let (log, other) = (member.log(), successor.log());
                    panic!("neither process was fenced; they logged: {log}; {other}");
                };
                if !is_successor {
                    std::mem::swap(member, &mut successor);
                }
                // The one that exits is `successor` now.
                let log = successor.log();
                assert!(!status.success() && log.contains("fenced"), "{log}");
                println!(
                    "fenced: {}",
                    if is_successor { "the successor" } else { "the former process" }
                );
                fenced += 1;
            }
            _ => {
                members.remove(instance).kill(&history);
                members.insert(instance, launcher.start(instance));
            }
        }
    }
    drop(faults_done);
    let keys = producer_thread.join().unwrap();
    let payments = &launcher.topics.payments;
    group::wait_until_committed(&KAFKA.consumer_config(payments), payments, PARTITIONS, TIMEOUT);
    members.into_iter().for_each(Worker::stop);

    let invoices = invoices::read(&KAFKA, &launcher.topics.invoices, "read_committed");
    let all = invoices::read(&KAFKA, &launcher.topics.invoices, "read_uncommitted").len();
    invoices::record(&history, &KAFKA, payments, &invoices);
    let mut others = Vec::new();
    if let Some(redis) = &redis {
        let (since, entries) = (history.recorder.now(), store::read_entries([redis], "bills"));
        for key in (0..keys).map(|id| format!("p-{id}")) {
            history.recorder.entry(since, &key, entries.get(&key));
        }
        let is_other = |invoice: &&Invoice| {
            let entry = entries.get(&invoice.id);
            entry.is_none_or(|entry| invoice.token != Some(entry.token().get()))
        };
        others.extend(invoices.iter().filter(is_other).map(|invoice| &invoice.id));
    }
    let mut report = history.judge(causes);
    report.expect(others.is_empty(), || {
        format!("invoices of handlers that did not complete their keys: {others:?}")
    });
    report.finish(
        &format!("transactions, {name}"),
        format_args!(
            "{kills} processes ended or held, {suspended} of them stood still and {fenced} were \
             fenced, {} outputs were aborted; seed {seed}",
            all - invoices.len(),
        ),
    );
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Produces at least `min_records` records, and until `faults_done` is set: a process learns that
/// it is fenced only when it commits. Counts the keys. They are those of the records, too, if
/// `has_keys` is set.
fn produce_until(
    topics: &Topics,
    recorder: &HistoryRecorder,
    has_keys: bool,
    min_records: usize,
    faults_done: &AtomicBool,
    mut rng: fastrand::Rng,
) -> usize {
    let (mut records, mut keys) = (0, 0);
    while records < min_records || !faults_done.load(Ordering::Relaxed) {
        let chunk: Vec<_> = (0..RECORDS_PER_SECOND / 10)
            .map(|_| {
                let id = if keys > 0 && rng.u8(..20) == 0 { rng.usize(..keys) } else { keys };
                keys = keys.max(id + 1);
                // A repeat may belong to another account, and so to another partition.
                let account = (id + rng.usize(..2)) % ACCOUNTS;
                let key = has_keys.then(|| format!("p-{id}"));
                (topics.payment(account, id), key, Some(format!("a-{account}")))
            })
            .collect();
        records += chunk.len();
        history::produce(recorder, KAFKA.producer(), &topics.payments, chunk);
        thread::sleep(Duration::from_millis(100));
    }
    keys
}

struct Launcher<'a> {
    topics: Topics,
    url: String,
    options: &'static [&'static str],
    history: &'a TestHistory,
}

impl Launcher<'_> {
    /// Starts an instance, or restarts it.
    fn start(&self, instance: usize) -> Worker {
        let Topics { payments, invoices } = &self.topics;
        let mut command = Command::new(env!("CARGO_BIN_EXE_biller"));
        let id = format!("{payments}-{instance}");
        command.args([&KAFKA.bootstrap(), payments, payments, invoices, &id, &self.url]);
        // So short that a kill is likely to hit an open transaction.
        command.arg(self.history.folder()).arg("interval_ms=20");
        command.arg(format!("lock_ms={}", LOCK_TTL.as_millis())).args(self.options);
        Worker::start(&command, self.history)
    }
}
