//! The table of the loops, in Markdown.

use std::fmt;

use campanile::BoxError;

use super::kill::KILLED_AT_PERCENT;
use super::{Contestant, PAYMENTS, PRODUCE_INTERVAL};
use crate::driver::counters::{REQUEST_TIMES, RESPONSE_TIME};
use crate::driver::ledger::Faults;
use crate::driver::measurement::{Latency, Measurement};
use crate::driver::runner::Runner;
use crate::report::{machine, median};

/// The results of a contestant.
pub(super) struct Contest {
    pub(super) name: &'static str,
    pub(super) contestant: Contestant,
    pub(super) measured: Vec<Measurement>,
    pub(super) latency: Latency,
    pub(super) faults: Faults,
}

/// The results of all contestants.
pub(super) struct Table {
    servers: String,
    contests: Vec<Contest>,
}

impl Table {
    /// Asks the servers for their versions.
    pub(super) fn new(runner: &Runner, contests: Vec<Contest>) -> Result<Self, BoxError> {
        let info = runner.redis.cli(&["INFO", "server"])?;
        let redis = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let redis = redis.ok_or("Redis does not report its version")?.trim_end();
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        let servers =
            format!("Kafka {}, Redis {redis}, librdkafka {librdkafka}", runner.kafka.version()?);
        Ok(Self { servers, contests })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.contests.first().map_or(0, |contest| contest.measured.len());
        writeln!(f, "Measured {}, on which the servers run as well: {}.", machine(), self.servers)?;
        writeln!(f)?;
        writeln!(
            f,
            "| consumer | records/s | CPU per record | peak memory | latency p50 | p99 | \
             effects lost | repeated | for duplicates |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")?;
        for contest in &self.contests {
            writeln!(f, "{contest}")?;
        }
        writeln!(f)?;
        let [shortest, longest] = REQUEST_TIMES.map(|time| time.as_millis());
        let response = RESPONSE_TIME.as_millis();
        writeln!(
            f,
            "* The handler is a request to another service: it waits {shortest} or {longest} ms, has \
             its effect, and waits {response} ms.\n\
             * **Rate, CPU and memory** are the medians of {rounds} runs over {} records in {} \
             partitions, of which one in 20\n  repeats the key of another. CPU is that of the \
             consumer's process. Memory is its peak, minus the memory before it consumes.\n\
             * **Latency** is the time from producing a record to the end of its handler, at {} \
             records per second.",
            thousands(PAYMENTS.records),
            PAYMENTS.partitions,
            1_000 / PRODUCE_INTERVAL.as_millis(),
        )?;
        write!(
            f,
            "* **Effects** are those of another run over the same records, in which the process is \
             killed (SIGKILL) at {KILLED_AT_PERCENT} % of them and\n  started again. *Lost*: the \
             keys without an effect. *Repeated*: the further effects of a record. *For duplicates*: \
             those of another\n  record with the same key."
        )
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |figure: fn(&Measurement) -> f64| {
            median(&self.measured.iter().map(figure).collect::<Vec<_>>())
        };
        write!(f, "| {} | {} ", self.name, thousands(figure(Measurement::rate).round() as u64))?;
        write!(f, "| {:.0} µs ", figure(|measured| measured.cpu_us))?;
        write!(f, "| {:.0} MiB ", figure(|measured| measured.rss_mib))?;
        let Latency { p50, p99 } = self.latency;
        write!(f, "| {:.1} ms | {:.1} ms ", p50 / 1_000.0, p99 / 1_000.0)?;
        let Faults { lost, repeated, duplicated } = self.faults;
        write!(f, "| {lost} | {repeated} | {} |", thousands(duplicated))
    }
}

/// Formats a number with a space between its thousands.
fn thousands(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{} {:03}", thousands(number / 1_000), number % 1_000),
    }
}
