//! Compares the loops that are written by hand with Campanile: the same records, handler, Redis and
//! Kafka. Each contestant is then killed, and the effects of its handler are counted.

mod kill;
mod table;

use std::time::Duration;

use campanile::BoxError;
use tempfile::TempDir;

use self::kill::run_with_kill;
use self::table::{Contest, Table};
use super::Options;
use super::latency::{self, Load};
use super::runner::Runner;
use super::task::{Check, Contestant, OrderKind, RuntimeKind, Telemetry};
use super::topic::Topic;

/// The contestants, with their names.
const CONTESTANTS: [(&str, Contestant); 8] = [
    ("by hand, one record at a time, no check", Contestant::Tutorial),
    ("by hand, by partition, `SET NX`", Contestant::Partitions(Check::Claim)),
    (
        "by hand, by partition, `SET NX` and completion",
        Contestant::Partitions(Check::ClaimAndCompletion),
    ),
    ("by hand, by key, `SET NX` and completion", Contestant::Keyed),
    ("by hand, 256 at once, `SET NX` and completion", Contestant::Concurrent),
    ("Campanile, by partition", campanile(OrderKind::ByPartition)),
    ("Campanile, by key", campanile(OrderKind::ByKey)),
    ("Campanile, unordered", campanile(OrderKind::None)),
];

const fn campanile(order: OrderKind) -> Contestant {
    Contestant::Campanile { order, runtime: RUNTIME, telemetry: Telemetry::None }
}

/// As for the loops written by hand, which are faster on it.
const RUNTIME: RuntimeKind = RuntimeKind::CurrentThread;

/// Small enough for the slowest loop to reach the end.
const PAYMENTS: Topic = Topic {
    name: "loops",
    partitions: 6,
    filled: 6,
    records: 20_000,
    value: 100,
    batch: None,
    keyed: true,
    timed: false,
    handler_time: Duration::ZERO,
};

/// Slow enough for one record at a time.
const PRODUCE_INTERVAL: Duration = Duration::from_millis(8);

/// Longer than any run takes.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs all contestants, and prints a table in Markdown.
pub(crate) fn run(options: Options) -> Result<(), BoxError> {
    let rounds = options.rounds;
    let folder = TempDir::new()?;
    let mut runner = Runner::start(Options { limit: LIMIT, ..options })?;
    runner.ledger = Some(folder.path().join("measured"));
    eprintln!("measuring rates, {rounds} times …");
    let measured = runner.rounds(&PAYMENTS, CONTESTANTS.map(|(_, contestant)| contestant))?;

    let load = Load::start(&runner.kafka, PRODUCE_INTERVAL)?;
    runner.mark_filled(&latency::TOPIC);
    let mut contests = Vec::new();
    for ((name, contestant), measured) in CONTESTANTS.into_iter().zip(measured) {
        eprintln!("measuring the latency of {name} …");
        runner.clear()?;
        let timed = runner.run(&latency::TOPIC, contestant, LIMIT)?;
        let latency = timed.latency.ok_or("the latency was not measured")?;
        contests.push(Contest { name, contestant, measured, latency, faults: Default::default() });
    }
    load.stop()?;

    for contest in &mut contests {
        eprintln!("killing {} …", contest.name);
        contest.faults = run_with_kill(&mut runner, &PAYMENTS, contest.contestant, folder.path())?;
    }
    println!("{}", Table::new(&runner, contests)?);
    Ok(())
}
