//! The long variants of tests.

use crate::Result;
use crate::binaries::Binary;
use crate::command::Size;
use crate::fuzz::{self, SECONDS};
use crate::install::install;
use crate::progress::{Progress, cargo};
use clap::ValueEnum;
use std::env;
use std::fmt;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

/// A set of tests that have a long variant.
pub(crate) struct Soak {
    packages: &'static [&'static str],
    /// The test binaries to run; all of the packages' binaries if empty.
    tests: &'static [&'static str],
    /// Whether the tests run one at a time.
    serial: bool,
}

/// What can be run by itself.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Those of the Redis store, the storms, and the rolling upgrades
    Redis,
    /// Those of the Postgres store, the inbox's storm, and the rolling upgrades
    Postgres,
    /// The storms of the consumer driver, each with a group of many processes
    Driver,
    /// All faults at once, in all stores, processes and the broker
    Everything,
    /// The fuzz targets
    Fuzz,
}

/// Runs the long variants of the tests of a part, or all and the fuzz targets. Returns the totals.
pub(crate) fn soak(progress: &Progress, part: Option<Part>) -> Result<String> {
    match part {
        Some(Part::Redis) => REDIS.soak(progress),
        Some(Part::Postgres) => POSTGRES.soak(progress),
        Some(Part::Driver) => DRIVER.soak(progress),
        Some(Part::Everything) => EVERYTHING.soak(progress),
        Some(Part::Fuzz) => fuzz::soak(progress),
        None => {
            let (fuzzed, soaked) = (fuzz::soak(progress), ALL.soak(progress));
            let is_ok = fuzzed.is_ok() && soaked.is_ok();
            let text = |result: Result<String>| result.unwrap_or_else(|error| error.to_string());
            let summary = format!("{}; {}", text(fuzzed), text(soaked));
            if is_ok { Ok(summary) } else { Err(summary.into()) }
        }
    }
}

const ALL: Soak = Soak {
    packages: &[
        "campanile-cli",
        "campanile-core",
        "campanile-idempotency",
        "campanile-driver",
        "campanile-kafka",
        "campanile-postgres",
        "campanile-redis",
        "campanile-test",
        "campanile-tests",
    ],
    tests: &[],
    serial: false,
};

const REDIS: Soak = Soak {
    packages: &["campanile-redis", "campanile-tests"],
    tests: &["redis", "storms", "fleets"],
    serial: false,
};

const POSTGRES: Soak = Soak {
    packages: &["campanile-postgres", "campanile-tests"],
    tests: &["postgres", "inbox", "fleets"],
    serial: false,
};

const DRIVER: Soak =
    Soak { packages: &["campanile-tests"], tests: &["rebalances", "transactions"], serial: true };

/// All faults at once, in all stores, processes and the broker.
pub(crate) const EVERYTHING: Soak =
    Soak { packages: &["campanile-tests"], tests: &["everything"], serial: true };

/// The time limit of one test binary: several times the duration of the longest with these lengths.
const BINARY_TIMEOUT: Duration = Duration::from_secs(12 * 60 * 60);

/// The lengths of the tests, unless the environment sets others.
const LENGTHS: &[(&str, &str)] = &[
    ("CAMPANILE_DIFFERENTIAL_OPS", "1000000"),
    ("CAMPANILE_SIMULATION_CASES", "5000"),
    ("PROPTEST_CASES", "5000"),
    ("CAMPANILE_DURABILITY_ROUNDS", "20"),
    ("CAMPANILE_STORM_RECORDS", "20000"),
    ("CAMPANILE_STORM_ROUNDS", "3"),
    ("CAMPANILE_STORM_BACKLOG_MIB", "1024"),
    ("CAMPANILE_FLEET_RECORDS", "20000"),
    ("CAMPANILE_REBALANCE_RECORDS", "200000"),
    ("CAMPANILE_REBALANCE_MEMBERS", "8"),
    ("CAMPANILE_REBALANCE_PAUSE_MS", "4000"),
    ("CAMPANILE_REBALANCE_KILLS", "50"),
    ("CAMPANILE_REBALANCE_STOPS", "10"),
    ("CAMPANILE_REBALANCE_OUTAGES", "10"),
    ("CAMPANILE_REBALANCE_SHUTDOWNS", "300"),
    ("CAMPANILE_REBALANCE_CLOSES", "2000"),
    ("CAMPANILE_REBALANCE_BACKLOG_MIB", "2048"),
    ("CAMPANILE_TRANSACTION_RECORDS", "200000"),
    ("CAMPANILE_TRANSACTION_KILLS", "100"),
    ("CAMPANILE_INBOX_RECORDS", "20000"),
    ("CAMPANILE_INBOX_KILLS", "30"),
    ("CAMPANILE_INBOX_TERMINATIONS", "10"),
    ("CAMPANILE_CHARGE_PAYMENTS", "2000"),
    ("CAMPANILE_CHARGE_KILLS", "500"),
    ("CAMPANILE_CHARGE_OUTAGE_PAYMENTS", "20000"),
    ("CAMPANILE_CHARGE_OUTAGE_SECONDS", "60"),
    ("CAMPANILE_CHARGE_OUTAGE_KILLS", "5"),
    ("CAMPANILE_EVERYTHING_RECORDS", "1000000"),
    ("CAMPANILE_EVERYTHING_FAULTS", "1000"),
    ("CAMPANILE_EVERYTHING_RATE", "700"),
    ("CAMPANILE_REDRIVE_LETTERS", "20000"),
    ("CAMPANILE_REDRIVE_KILLS", "200"),
];

/// Describes the variables that set the lengths, with the defaults.
pub(crate) fn lengths() -> String {
    let lengths: Vec<_> =
        LENGTHS.iter().map(|(name, length)| format!("  {name} ({length})")).collect();
    format!("Lengths, with their defaults:\n{}\n  {SECONDS}", lengths.join("\n"))
}

impl Soak {
    /// Runs the long variants of all tests, even if some fail, and summarizes them in one line.
    fn soak(&self, progress: &Progress) -> Result<String> {
        let tested = self.run(progress, Size::Full, &mut io::stdout())?;
        tested.check()?;
        Ok(Summary::from_output(&tested.lines).to_string())
    }

    /// Runs the tests: their long variants, or as short as `cargo test` does.
    pub(crate) fn run(
        &self,
        progress: &Progress,
        size: Size,
        output: &mut impl Write,
    ) -> Result<Tested> {
        install(progress)?;
        let mut targets: Vec<_> = self.packages.iter().flat_map(|it| ["--package", *it]).collect();
        match self.tests {
            // Excludes examples.
            [] => targets.push("--tests"),
            tests => targets.extend(tests.iter().flat_map(|test| ["--test", *test])),
        }
        Tested::run(progress, &targets, output, |command| {
            if size == Size::Full {
                let are_unset = LENGTHS.iter().filter(|(name, _)| env::var_os(name).is_none());
                command.envs(are_unset.copied());
            }
            if self.serial {
                command.args(["--test-threads", "1"]);
            }
        })
    }
}

/// What tests have printed, and which test binaries failed.
pub(crate) struct Tested {
    pub(crate) lines: Vec<String>,
    failed: Vec<String>,
}

impl Tested {
    /// Builds these targets of cargo in release mode and runs one test binary after the other, even if some
    /// fail. Copies what they print to `output`.
    pub(crate) fn run(
        progress: &Progress,
        targets: &[&str],
        output: &mut impl Write,
        configure: impl Fn(&mut Command),
    ) -> Result<Self> {
        let mut build = cargo();
        let binaries =
            Binary::build(progress, build.args(["test", "--release", "--no-run"]).args(targets))?;
        let mut tested = Self { lines: Vec::new(), failed: Vec::new() };
        for binary in binaries.iter().filter(|binary| binary.is_test) {
            let mut command = binary.command();
            // Show seeds and counts even if all tests pass.
            configure(command.arg("--show-output"));
            let finished = progress.supervise(&mut command, BINARY_TIMEOUT, output)?;
            if !binary.has_passed(&finished) {
                tested.failed.push(format!("{} of {}", binary.name, binary.package));
            }
            tested.lines.extend(finished.lines);
        }
        Ok(tested)
    }

    /// Whether a test binary failed.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Fails with the totals if a test failed, a storm had a violation, or no storm ran.
    pub(crate) fn check(&self) -> Result {
        let summary = Summary::from_output(&self.lines);
        if !self.has_failed() && summary.violations == 0 && summary.storms > 0 {
            return Ok(());
        }
        Err(format!("{summary}; failed: {}", self.failed.join(", ")).into())
    }
}

/// The totals over all storms.
#[derive(Debug, Default)]
struct Summary {
    storms: u64,
    records: u64,
    /// The number of runs of keys that had run before.
    runs_again: u64,
    violations: u64,
}

impl Summary {
    /// Adds up the lines of storms, such as `storm: cut: 20 records, 18 keys, 3 runs again (1 failed, 2
    /// suspended), 0 violations; …`.
    fn from_output(lines: &[String]) -> Self {
        let mut summary = Self::default();
        for line in lines.iter().filter_map(|line| line.strip_prefix("storm: ")) {
            summary.storms += 1;
            summary.records += number_before(line, " records").unwrap_or_default();
            summary.runs_again += number_before(line, " runs again").unwrap_or_default();
            // A line without a count of violations counts as one violation.
            summary.violations += number_before(line, " violations").unwrap_or(1);
        }
        summary
    }
}

fn number_before(text: &str, words: &str) -> Option<u64> {
    let (before, _) = text.split_once(words)?;
    before.rsplit(' ').next()?.parse().ok()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { storms, records, runs_again, violations } = self;
        write!(
            f,
            "{storms} storms, {records} records, {runs_again} runs again, {violations} violations"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storms_are_added_up_and_one_without_a_count_is_a_violation() {
        let lines = [
            "storm: hung: 3150 records, 2850 keys, 6 runs again (2 dropped, 4 suspended), 0 violations; 17 begun",
            "storm: cut: 100 records, 90 keys, 1 runs again (1 suspended), 2 violations; 17 begun",
            "test hang::hung ... ok",
            "storm: hung: half a li",
        ];
        assert_eq!(
            Summary::from_output(&lines.map(str::to_owned)).to_string(),
            "3 storms, 3250 records, 7 runs again, 3 violations"
        );
    }
}
