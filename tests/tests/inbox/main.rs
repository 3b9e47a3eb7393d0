//! Kafka to Postgres on real servers: consumer processes book records in a ledger while the
//! processes are killed, their sessions are terminated, and the server is killed. The rows of the
//! ledger are part of the history that is judged.
//!
//! The storm prints one line. `CAMPANILE_INBOX_RECORDS`, `_KILLS` and `_TERMINATIONS` make it
//! longer, and `CAMPANILE_STORM_SEED` repeats the choices of an earlier run.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod data_loss;
#[path = "../support/group.rs"]
mod group;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/history.rs"]
mod history;
#[path = "../support/length.rs"]
mod length;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::collections::HashMap;
use std::process::Command;
use std::thread;
use std::time::Duration;

use campanile::IdempotencyKey;
use campanile::key::Namespace;
use campanile::postgres::migrate;
use campanile::store::StoreKey;
use campanile_test::history::{Cause, Entry, Event, FaultKind, Order, State, Transactions};
use campanile_test::{KafkaServer, Message, PgServer, eventually};

use history::{Payment, Report, TestHistory};
use length::env_or;
use worker::Worker;

const TOPIC: &str = "bookings";
const GROUP: &str = "ledger";
const NAMESPACE: &str = "ledger";
const PARTITIONS: i32 = 8;
const MEMBERS: usize = 2;
const ACCOUNTS: usize = 100;
/// The lock's time to live, which a busy machine hardly ever misses, and a session that soon ends after a
/// kill.
const LOCK_TTL: Duration = Duration::from_secs(6);
const OPTIONS: &[&str] = &["lock_ms=6000", "session.timeout.ms=4000", "heartbeat.interval.ms=200"];
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a kill waits for a booking to hit.
const MAX_IDLE: Duration = Duration::from_secs(2);

/// Why keys may run again. A killed process never has had an effect, unless it is in the ledger, and
/// then its key never runs again. On a busy machine, a consumer may miss its session, and then drops its
/// work.
const CAUSES: &[Cause] = &[
    Cause::RolledBack,
    Cause::Failed,
    Cause::KilledBeforeEffect,
    Cause::StoreUnavailable,
    Cause::Dropped,
];

/// A fault that the storm injects.
#[derive(Clone, Copy)]
enum Fault {
    KillMember,
    TerminateSession,
    KillServer,
}

#[test]
fn kills_book_each_key_once_with_correct_sum() {
    let records = env_or("CAMPANILE_INBOX_RECORDS", 4_000) as usize;
    let kills = env_or("CAMPANILE_INBOX_KILLS", 6) as usize;
    let terminations = env_or("CAMPANILE_INBOX_TERMINATIONS", 4) as usize;
    let seed = env_or("CAMPANILE_STORM_SEED", fastrand::u64(..));
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut faults = vec![Fault::KillMember; kills];
    faults.extend(vec![Fault::TerminateSession; terminations]);
    faults.push(Fault::KillServer);
    rng.shuffle(&mut faults);

    let mut fixture = Fixture::start(LOCK_TTL, OPTIONS);
    let url = fixture.postgres.url();
    // One record in twenty repeats the key of another, mostly in another partition.
    let keys = records - records / 20;
    let mut bookings: Vec<usize> = (0..keys).collect();
    bookings.extend((keys..records).map(|_| rng.usize(..keys)));
    rng.shuffle(&mut bookings);
    let bookings: Vec<_> = bookings.iter().map(|id| booking(*id, rng.i32(0..PARTITIONS))).collect();
    let steps = faults.len() + 1;
    let mut members: Vec<Worker> = (0..MEMBERS).map(|_| fixture.start_member(&url)).collect();
    let (mut terminated, mut killed_running) = (0, 0);
    for (step, chunk) in bookings.chunks(records.div_ceil(steps)).enumerate() {
        // The fault follows the last part at once, so that it hits consumers with work in flight.
        for part in chunk.chunks(chunk.len().div_ceil(8)) {
            thread::sleep(Duration::from_millis(rng.u64(50..200)));
            fixture.produce(part.iter().cloned());
        }
        match faults.get(step) {
            Some(Fault::KillMember) => {
                let first = rng.usize(..MEMBERS);
                let running = || {
                    let mut all = (0..MEMBERS).map(|n| (first + n) % MEMBERS);
                    all.find(|&it| members[it].pause_running(&fixture.history).is_some())
                };
                // On a busy machine, all may be done.
                let victim = eventually(MAX_IDLE, running);
                killed_running += usize::from(victim.is_some());
                members.swap_remove(victim.unwrap_or(first)).kill(&fixture.history);
                members.push(fixture.start_member(&url));
            }
            Some(Fault::TerminateSession) => terminated += fixture.terminate_sessions(),
            Some(Fault::KillServer) => fixture.restart_server(),
            None => {}
        }
    }
    let settings = fixture.kafka.consumer_config(GROUP);
    fixture.wait_until_committed();
    members.into_iter().for_each(Worker::stop);
    fixture.history.recorder.record_commits(&settings, GROUP).unwrap();
    fixture.record_ledger();
    fixture.record_entries(keys);

    let mut report = fixture.history.judge(CAUSES);
    fixture.check_sums(keys, &mut report);
    report.expect(killed_running > 0, || "no kill hit a booking".to_owned());
    report.finish(
        "inbox",
        format_args!(
            "{kills} kills, {killed_running} of them in a booking, {terminated} sessions terminated, \
             the server killed once; seed {seed}"
        ),
    );
}

struct Fixture {
    kafka: KafkaServer,
    postgres: PgServer,
    history: TestHistory,
    /// Options of the consumers.
    options: &'static [&'static str],
}

impl Fixture {
    fn start(lock_ttl: Duration, options: &'static [&'static str]) -> Self {
        let kafka = KafkaServer::start().unwrap();
        kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
        let transactions = Some(Transactions::Store);
        let history = TestHistory::with_transactions(Order::Partition, lock_ttl, transactions);
        let fixture = Self { kafka, postgres: PgServer::start().unwrap(), history, options };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(migrate(fixture.postgres.url())).unwrap();
        fixture.psql(&format!(
            "CREATE TABLE ledger (id text NOT NULL, account int NOT NULL, cents bigint NOT NULL,
                 process text NOT NULL, run bigint NOT NULL);
             CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO account SELECT n, 0 FROM generate_series(0, {ACCOUNTS} - 1) n"
        ));
        fixture
    }

    fn start_member(&self, postgres: &str) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_booker"));
        command.args([&*self.kafka.bootstrap(), GROUP, TOPIC, postgres]);
        command.arg(self.history.folder()).args(self.options);
        Worker::start(&command, &self.history)
    }

    fn produce(&self, bookings: impl IntoIterator<Item = Payment>) {
        history::produce(&self.history.recorder, self.kafka.producer(), TOPIC, bookings);
    }

    fn wait_until_committed(&self) {
        let settings = self.kafka.consumer_config(GROUP);
        group::wait_until_committed(&settings, TOPIC, PARTITIONS, TIMEOUT);
    }

    /// Kills the server, which keeps its data, and starts it again.
    fn restart_server(&mut self) {
        let at = self.history.recorder.now();
        self.postgres.restart().unwrap();
        let until = Some(self.history.recorder.now());
        self.history.recorder.fault(at, until, FaultKind::StoreUnavailable);
    }

    /// Terminates half of the sessions with an open transaction, and at least one session. Counts
    /// the terminated sessions.
    fn terminate_sessions(&self) -> usize {
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM (
                 SELECT pid FROM pg_stat_activity
                 WHERE application_name = 'campanile'
                 ORDER BY xact_start IS NULL, random()
                 LIMIT (SELECT greatest(1, count(*) / 2) FROM pg_stat_activity
                        WHERE application_name = 'campanile' AND xact_start IS NOT NULL)
             ) victims";
        // A consumer that was just killed may still be restarting.
        let at = self.history.recorder.now();
        let terminated = || Some(self.psql(terminate).parse().unwrap()).filter(|count| *count > 0);
        let terminated = eventually(TIMEOUT, terminated).expect("a consumer has a session");
        let until = Some(self.history.recorder.now());
        self.history.recorder.fault(at, until, FaultKind::StoreSessionsEnded);
        terminated
    }

    fn psql(&self, sql: &str) -> String {
        self.postgres.psql(sql).unwrap()
    }

    /// Records the effects that were committed.
    fn record_ledger(&self) {
        for row in self.psql("SELECT process, run FROM ledger").lines() {
            let (process, run) = row.split_once('|').unwrap();
            self.history.recorder.visible(process, run.parse().unwrap());
        }
    }

    /// Records the entries of all keys, read without the product's client.
    fn record_entries(&self, keys: usize) {
        let since = Some(self.history.recorder.now());
        let rows =
            self.psql("SELECT encode(key, 'hex'), state, token, attempt FROM campanile.entry");
        let at = self.history.recorder.now();
        let rows: HashMap<_, _> = rows.lines().map(|row| row.split_once('|').unwrap()).collect();
        let namespace = Namespace::try_from(NAMESPACE).unwrap();
        for key in (0..keys).map(name) {
            let digest = IdempotencyKey::new(key.clone()).unwrap();
            let digest = StoreKey::new(namespace.clone(), &digest);
            let digest: String = digest.digest().iter().map(|byte| format!("{byte:02x}")).collect();
            let row = rows.get(&*digest).map(|row| row.split('|').collect::<Vec<_>>());
            let state = match row.as_ref().map(|row| row[0]) {
                None => State::Absent,
                Some("P") => State::Processing,
                Some("R") => State::Retrying,
                Some("C") => State::Completed,
                Some("F") => State::Failed,
                Some(other) => panic!("unknown state {other}"),
            };
            let token = row.as_ref().map(|row| row[1].parse().unwrap());
            let attempt = row.as_ref().map(|row| row[2].parse().unwrap());
            let entry = Entry { at, since, key, state, token, attempt };
            self.history.recorder.record(&Event::Entry(entry));
        }
    }

    /// Checks that the effects in the database are those of the keys, each as a whole.
    fn check_sums(&self, keys: usize, report: &mut Report) {
        let sum: usize = (0..keys).map(cents).sum();
        let expected = [
            ("the sum", "SELECT sum(cents) FROM ledger", sum),
            ("the balances", "SELECT sum(balance) FROM account", sum),
            (
                "accounts whose balance is not that of their rows",
                "SELECT count(*) FROM account a WHERE balance IS DISTINCT FROM \
                 (SELECT coalesce(sum(cents), 0) FROM ledger l WHERE l.account = a.id)",
                0,
            ),
        ];
        for (what, sql, expected) in expected {
            let found = self.psql(sql);
            let is_expected = found == expected.to_string();
            report.expect(is_expected, || format!("{what}: expected {expected}, got {found}"));
        }
    }
}

/// The message of a booking, and its key.
fn booking(id: usize, partition: i32) -> Payment {
    let body = serde_json::json!({ "id": name(id), "account": id % ACCOUNTS, "cents": cents(id) });
    (Message::to(TOPIC).partition(partition).payload(body.to_string()), name(id), None)
}

fn name(id: usize) -> String {
    format!("b-{id}")
}

/// Each booking has a different amount.
fn cents(id: usize) -> usize {
    id + 1
}
