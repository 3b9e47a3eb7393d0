//! A consumer group with its topic, its store and its history.

use std::thread;

use campanile::store::State;
use campanile_test::history::{Cause, HistoryRecorder, Order, Transactions};
use campanile_test::{KafkaServer, eventually};
use rdkafka::ClientConfig;

use crate::events::Events;
use crate::faults::TICK;
use crate::history::TestHistory;
use crate::processes::Processes;
use crate::stores::{Cluster, Postgres, Redis, Sentinel, Store};
use crate::topic::SharedTopic;
use crate::{
    LETTER_PARTITIONS, LOCK_TTL, PARTITIONS, TIMEOUT, deleted, entries, group, invoices, letters,
};

/// The program of the group's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Processes payments, of which some fail.
    Worker,
    /// Books in the transactional inbox.
    Booker,
    /// Produces invoices in transactions of the broker.
    Biller,
}

/// What distinguishes a group from the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) order: Order,
    /// Options of the processes.
    pub(crate) options: &'static [&'static str],
    pub(crate) has_retries: bool,
}

/// The group soon notices a dead member. For the newer protocol, the broker sets that.
///
/// With the classic protocol, the members themselves look for new partitions, every five minutes by default.
const CLASSIC: &[&str] = &[
    "session.timeout.ms=5000",
    "heartbeat.interval.ms=500",
    "topic.metadata.refresh.interval.ms=2000",
];
const NEWER: &[&str] = &["group.protocol=consumer"];

/// Why keys may run again; the judge decides whether the faults that were recorded explain it.
const CAUSES: &[Cause] = &[
    Cause::Failed,
    Cause::RolledBack,
    Cause::KilledAfterEffect,
    Cause::KilledBeforeEffect,
    Cause::Dropped,
    Cause::DroppedAfterSuccess,
    Cause::Suspended,
    Cause::StoreUnavailable,
    Cause::NetworkCut,
    Cause::ClockStepped,
    Cause::StoreLostWrites,
    Cause::StoreEvicted,
];

pub(crate) struct Scenario {
    pub(crate) kind: Kind,
    pub(crate) history: TestHistory,
    pub(crate) store: Box<dyn Store>,
    pub(crate) processes: Processes,
    pub(crate) topic: SharedTopic,
    pub(crate) keys: usize,
}

impl Scenario {
    /// Starts the stores of all groups, and creates their topics.
    pub(crate) fn start_all(kafka: &KafkaServer) -> Vec<Self> {
        use Program::{Biller, Booker, Worker};
        let kind = |name, program, order, options| {
            let has_retries = order == Order::None;
            Kind { name, program, order, options, has_retries }
        };
        let ledger = "CREATE TABLE ledger (id text NOT NULL, account int NOT NULL, \
             cents bigint NOT NULL, process text NOT NULL, run bigint NOT NULL); \
             CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL); \
             INSERT INTO account SELECT n, 0 FROM generate_series(0, 999) n";
        vec![
            Self::new(
                kind("by-partition", Worker, Order::Partition, CLASSIC),
                kafka,
                Box::new(Redis::start()),
            ),
            Self::new(
                kind("by-key", Worker, Order::Key, NEWER),
                kafka,
                Box::new(Sentinel::start()),
            ),
            Self::new(
                kind("unordered", Worker, Order::None, NEWER),
                kafka,
                Box::new(Cluster::start(Worker.namespace())),
            ),
            Self::new(
                kind("postgres", Worker, Order::Key, CLASSIC),
                kafka,
                Box::new(Postgres::start_with_clock_and_standby()),
            ),
            Self::new(
                kind("inbox", Booker, Order::Partition, NEWER),
                kafka,
                Box::new(Postgres::start_with_tables(ledger)),
            ),
            Self::new(
                kind("transactions", Biller, Order::Key, CLASSIC),
                kafka,
                Box::new(Redis::start_with_clock()),
            ),
        ]
    }

    fn new(kind: Kind, kafka: &KafkaServer, store: Box<dyn Store>) -> Self {
        let create = |topic: String, partitions, config: &[(&str, &str)]| {
            kafka.create_topic(&topic, partitions, config).unwrap();
        };
        create(kind.topic(), PARTITIONS, &[]);
        match kind.program {
            // A letter has the timestamp of its record, and the judge needs that of the letter.
            Program::Worker => {
                let config = [("message.timestamp.type", "LogAppendTime")];
                create(kind.dead_letters(), LETTER_PARTITIONS, &config);
            }
            Program::Biller => create(kind.invoices(), PARTITIONS, &[]),
            Program::Booker => {}
        }
        if kind.has_retries {
            create(kind.retries(), LETTER_PARTITIONS, &[]);
        }
        let transactions = match kind.program {
            Program::Worker => None,
            Program::Booker => Some(Transactions::Store),
            Program::Biller => Some(Transactions::Broker),
        };
        let history = TestHistory::with_transactions(kind.order, LOCK_TTL, transactions);
        let processes = Processes::new(kind, kafka.bootstrap(), store.url());
        let topic = SharedTopic::new(&kind.topic());
        Self { kind, history, store, processes, topic, keys: 0 }
    }

    pub(crate) fn recorder(&self) -> HistoryRecorder {
        self.history.recorder.clone()
    }

    /// Waits until the group has committed everything.
    pub(crate) fn wait_until_committed(&mut self, kafka: &KafkaServer) {
        let Self { kind, processes, history, topic, .. } = self;
        let config = config(kind, kafka);
        let partitions = topic.lock().partitions;
        let wait = || {
            group::wait_until_committed(&config, &kind.topic(), partitions, TIMEOUT);
            if kind.has_retries {
                // A copy may be copied once more.
                let (topic, mut copies) = (kind.retries(), None);
                let is_settled = || {
                    group::wait_until_committed(&config, &topic, LETTER_PARTITIONS, TIMEOUT);
                    let now = letters::count(kafka, &topic);
                    (copies.replace(now) == Some(now)).then_some(())
                };
                eventually(TIMEOUT, is_settled).expect("all copies are processed");
            }
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            while !waiting.is_finished() {
                processes.keep_running(history);
                thread::sleep(TICK);
            }
        });
    }

    /// Records what the servers have at the end, judges the history, and prints the line of the storm.
    pub(crate) fn finish(&mut self, kafka: &KafkaServer, seed: u64) {
        let Self { kind, history, store, topic, keys, .. } = self;
        let recorder = &history.recorder;
        store.record_takeovers(recorder);
        let (name, topic, mut letters) = (kind.topic(), topic.lock(), 0);
        let record_commits = || {
            // The group has the name of its topic, and commits those of its retry topics, too.
            let name_of = |of: &str, metadata: &str, at| match of == name {
                true => topic.name_of(metadata, at).to_owned(),
                false => of.to_owned(),
            };
            recorder.record_commits_as(&config(kind, kafka), &name, name_of).unwrap();
        };
        match kind.program {
            Program::Worker => {
                record_commits();
                letters = letters::record(kafka, kind, history);
            }
            Program::Biller => {
                let invoices = invoices::read(kafka, &kind.invoices(), "read_committed");
                invoices::record_outputs(history, &name, &invoices);
                record_commits();
            }
            Program::Booker => {
                record_commits();
                for row in store.query("SELECT process, run FROM ledger").lines() {
                    let (process, run) = row.split_once('|').unwrap();
                    recorder.visible(process, run.parse().unwrap());
                }
            }
        }
        let (since, entries) =
            (recorder.now(), entries::read(&store.direct_url(), kind.program.namespace()));
        for key in (0..*keys).map(key) {
            recorder.entry(since, &key, entries.get(&key));
        }
        let mut report = history.judge(CAUSES);
        report.expect(entries.unreadable == 0, || {
            format!("{} unreadable entries", entries.unreadable)
        });
        for violation in store.violations() {
            report.expect(false, || violation.clone());
        }
        if kind.program == Program::Booker {
            let sum = store.query("SELECT sum(cents) FROM ledger");
            // The others were deleted before they were processed, or the judge misses them.
            let is_completed = |number: &usize| {
                entries.get(&key(*number)).is_some_and(|it| it.state() == State::Completed)
            };
            let expected: usize = (0..*keys).filter(is_completed).map(cents).sum();
            let expected = expected.to_string();
            report.expect(sum == expected, || format!("the sum: expected {expected}, got {sum}"));
            let balances = store.query("SELECT sum(balance) FROM account");
            report.expect(balances == sum, || format!("the balances are {balances} of {sum}"));
        }
        let deleted = deleted::count_unprocessed(history.folder());
        let events = Events::read(history.folder());
        print!("{name}: {deleted} records deleted before they were processed; events:\n{events}");
        let stall = history.progress().longest_stall();
        report.finish(
            &format!("everything, {}", kind.name),
            format_args!(
                "{} processes, of which {} were not live, {letters} dead letters and copies, the longest stall \
                 {stall:.1?}; seed {seed}",
                self.processes.started(),
                self.processes.not_live(),
            ),
        );
    }
}

impl Kind {
    /// The topic of payments, which is also the name of the group.
    pub(crate) fn topic(&self) -> String {
        self.name.to_owned()
    }

    pub(crate) fn dead_letters(&self) -> String {
        format!("{}.dead", self.name)
    }

    pub(crate) fn retries(&self) -> String {
        format!("{}.retries", self.name)
    }

    pub(crate) fn invoices(&self) -> String {
        format!("{}.invoices", self.name)
    }
}

impl Program {
    /// The namespace of its keys.
    pub(crate) fn namespace(self) -> &'static str {
        match self {
            Self::Worker => "payments",
            Self::Booker => "ledger",
            Self::Biller => "bills",
        }
    }
}

/// The key of a payment with this number.
pub(crate) fn key(number: usize) -> String {
    format!("p-{number}")
}

/// Each booking has a different amount.
pub(crate) fn cents(number: usize) -> usize {
    number + 1
}

fn config(kind: &Kind, kafka: &KafkaServer) -> ClientConfig {
    kafka.consumer_config(&kind.topic())
}
