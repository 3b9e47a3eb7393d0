//! Kafka to Postgres on real servers: consumer processes book records in a ledger while the
//! processes are killed, their sessions are terminated, and the server is killed.
//!
//! The storm prints one line. `CAMPANILE_INBOX_RECORDS`, `_KILLS` and `_TERMINATIONS` make it
//! longer, and `CAMPANILE_STORM_SEED` repeats the choices of an earlier run.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;

use std::process::Command;
use std::thread;
use std::time::Duration;

use campanile::postgres::migrate;
use campanile_test::{KafkaServer, Message, PgServer, Process, eventually};
use tempfile::TempDir;

const TOPIC: &str = "bookings";
const GROUP: &str = "ledger";
const PARTITIONS: i32 = 8;
const MEMBERS: usize = 2;
const ACCOUNTS: usize = 100;
const SHORT_SESSION: [&str; 2] = ["session.timeout.ms=2000", "heartbeat.interval.ms=200"];
const TIMEOUT: Duration = Duration::from_secs(120);

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

    let mut fixture = Fixture::start();
    // One record in twenty repeats the key of another, mostly in another partition.
    let keys = records - records / 20;
    let mut bookings: Vec<usize> = (0..keys).collect();
    bookings.extend((keys..records).map(|_| rng.usize(..keys)));
    rng.shuffle(&mut bookings);
    let messages: Vec<_> = bookings.iter().map(|id| booking(*id, rng.i32(0..PARTITIONS))).collect();
    let producer = fixture.kafka.producer();
    let steps = faults.len() + 1;
    let mut members: Vec<Process> = (0..MEMBERS).map(|_| fixture.start_member()).collect();
    let mut terminated = 0;
    for (step, chunk) in messages.chunks(records.div_ceil(steps)).enumerate() {
        // Records are produced while the faults occur, so that every fault hits consumers with work
        // in flight.
        for part in chunk.chunks(chunk.len().div_ceil(8)) {
            producer.produce_all(part.iter().cloned()).unwrap();
            thread::sleep(Duration::from_millis(rng.u64(20..100)));
        }
        match faults.get(step) {
            Some(Fault::KillMember) => {
                let member = rng.usize(..MEMBERS);
                members[member].kill().unwrap();
                members[member] = fixture.start_member();
            }
            Some(Fault::TerminateSession) => terminated += fixture.terminate_sessions(),
            Some(Fault::KillServer) => fixture.postgres.restart().unwrap(),
            None => {}
        }
    }
    group::wait_until_committed(&fixture.kafka.consumer_config(GROUP), TOPIC, PARTITIONS, TIMEOUT);
    for mut member in members {
        let status = member.terminate().unwrap();
        assert!(status.success(), "{status}: {}", member.log().unwrap());
    }

    let violations = fixture.violations(keys);
    println!(
        "storm: inbox: {records} records, {keys} keys, 0 runs again (), {} violations; {kills} \
         kills, {terminated} sessions terminated, the server killed once, {} keys were tried again; \
         seed {seed}",
        violations.len(),
        fixture.psql("SELECT count(*) FROM campanile.entry WHERE attempt > 1"),
    );
    assert!(violations.is_empty(), "{violations:#?}");
}

struct Fixture {
    kafka: KafkaServer,
    postgres: PgServer,
    folder: TempDir,
}

impl Fixture {
    fn start() -> Self {
        let kafka = KafkaServer::start().unwrap();
        kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
        let fixture =
            Self { kafka, postgres: PgServer::start().unwrap(), folder: TempDir::new().unwrap() };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(migrate(fixture.postgres.url())).unwrap();
        fixture.psql(&format!(
            "CREATE TABLE ledger (id text NOT NULL, account int NOT NULL, cents bigint NOT NULL);
             CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO account SELECT n, 0 FROM generate_series(0, {ACCOUNTS} - 1) n"
        ));
        fixture
    }

    fn start_member(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_booker"));
        command.args([&self.kafka.bootstrap(), GROUP, TOPIC, &self.postgres.url()]);
        command.args(SHORT_SESSION);
        let log = self.folder.path().join(format!("log-{}", fastrand::u64(..)));
        Process::spawn(&command, log).unwrap()
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
        let terminated = || Some(self.psql(terminate).parse().unwrap()).filter(|count| *count > 0);
        eventually(TIMEOUT, terminated).expect("a consumer has a session")
    }

    fn psql(&self, sql: &str) -> String {
        self.postgres.psql(sql).unwrap()
    }

    /// Finds the violated expectations.
    fn violations(&self, keys: usize) -> Vec<String> {
        let sum: usize = (0..keys).map(cents).sum();
        let expected = [
            ("rows", "SELECT count(*) FROM ledger", keys),
            ("keys", "SELECT count(DISTINCT id) FROM ledger", keys),
            ("the sum", "SELECT sum(cents) FROM ledger", sum),
            ("the balances", "SELECT sum(balance) FROM account", sum),
            ("entries", "SELECT count(*) FROM campanile.entry WHERE state = 'C'", keys),
            ("other entries", "SELECT count(*) FROM campanile.entry WHERE state <> 'C'", 0),
            (
                "accounts whose balance is not that of their rows",
                "SELECT count(*) FROM account a WHERE balance IS DISTINCT FROM \
                 (SELECT coalesce(sum(cents), 0) FROM ledger l WHERE l.account = a.id)",
                0,
            ),
        ];
        let mut violations = Vec::new();
        for (what, sql, expected) in expected {
            let found = self.psql(sql);
            if found != expected.to_string() {
                violations.push(format!("{what}: expected {expected}, got {found}"));
            }
        }
        violations
    }
}

fn booking(id: usize, partition: i32) -> Message {
    let body = serde_json::json!({ "id": format!("b-{id}"), "account": id % ACCOUNTS, "cents": cents(id) });
    Message::to(TOPIC).partition(partition).payload(body.to_string())
}

/// Each booking has a different amount.
fn cents(id: usize) -> usize {
    id + 1
}

/// Reads a number from the environment, for longer runs.
fn env_or(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}
