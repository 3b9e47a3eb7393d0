//! The long variants of tests.

use crate::Result;
use crate::fuzz;
use crate::install::install;
use crate::progress::{Progress, cargo_with_deadline};
use crate::prove::Size;
use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io;
use std::process::Command;
use std::time::Duration;

/// A set of tests that have a long variant.
pub(crate) struct Soak {
    packages: &'static [&'static str],
    /// The test binaries to run; all of the packages' binaries if empty.
    tests: &'static [&'static str],
    /// Whether the tests run one at a time.
    serial: bool,
    /// Whether the tests include storms.
    has_storms: bool,
}

/// Runs the long variants of all tests, and the fuzz targets for long. Returns the totals of both.
pub(crate) fn all(progress: &Progress) -> Result<String> {
    let (fuzzed, soaked) = (fuzz::soak(progress), ALL.run(progress));
    let text = |result: &Result<String>| match result {
        Ok(summary) => summary.clone(),
        Err(error) => error.to_string(),
    };
    let summary = format!("{}; {}", text(&fuzzed), text(&soaked));
    if fuzzed.is_ok() && soaked.is_ok() { Ok(summary) } else { Err(summary.into()) }
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
    has_storms: true,
};

/// The long tests of the Redis store, the storms, and the rolling upgrades.
pub(crate) const REDIS: Soak = Soak {
    packages: &["campanile-redis", "campanile-tests"],
    tests: &["redis", "storms", "fleets"],
    serial: false,
    has_storms: true,
};

/// The long tests of the Postgres store, the inbox's storm, and the rolling upgrades.
pub(crate) const POSTGRES: Soak = Soak {
    packages: &["campanile-postgres", "campanile-tests"],
    tests: &["postgres", "inbox", "fleets"],
    serial: false,
    has_storms: true,
};

/// The storms of the consumer driver, each with a group of many processes.
pub(crate) const DRIVER: Soak = Soak {
    packages: &["campanile-tests"],
    tests: &["rebalances", "transactions"],
    serial: true,
    has_storms: true,
};

/// All faults at once, in all stores, processes and the broker.
pub(crate) const EVERYTHING: Soak =
    Soak { packages: &["campanile-tests"], tests: &["everything"], serial: true, has_storms: true };

/// The time limit of one test binary: several times the duration of the longest with these lengths.
const BINARY_TIMEOUT: Duration = Duration::from_secs(12 * 60 * 60);

/// The time limit of building and running all test binaries.
const ALL_BINARIES_TIMEOUT: Duration = Duration::from_secs(48 * 60 * 60);

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
    ("CAMPANILE_EVERYTHING_RECORDS", "1000000"),
    ("CAMPANILE_EVERYTHING_FAULTS", "1000"),
    ("CAMPANILE_EVERYTHING_RATE", "700"),
    ("CAMPANILE_REDRIVE_LETTERS", "20000"),
    ("CAMPANILE_REDRIVE_KILLS", "200"),
];

impl Soak {
    /// Runs all tests, even if some fail, and summarizes them in one line.
    pub(crate) fn run(&self, progress: &Progress) -> Result<String> {
        install(progress)?;
        let mut command = self.command(Size::Full)?;
        let (lines, result) =
            progress.run_and_collect(&mut command, ALL_BINARIES_TIMEOUT, &mut io::stdout())?;
        let summary = Summary::from_output(&lines);
        match result {
            Ok(()) if summary.violations == 0 && (summary.storms > 0) == self.has_storms => {
                Ok(summary.to_string())
            }
            Ok(()) => Err(summary.to_string().into()),
            Err(error) => Err(format!("{summary}; {error}").into()),
        }
    }

    /// The command that runs all tests: with their long variants, or as short as `cargo test` does.
    pub(crate) fn command(&self, size: Size) -> Result<Command> {
        let mut command = cargo_with_deadline(BINARY_TIMEOUT)?;
        command.args(["test", "--release", "--no-fail-fast"]);
        for package in self.packages {
            command.args(["--package", package]);
        }
        if self.tests.is_empty() {
            // Excludes the documentation tests, which have no long variants.
            command.arg("--tests");
        }
        for test in self.tests {
            command.args(["--test", test]);
        }
        if size == Size::Full {
            for (variable, length) in LENGTHS {
                let length = env::var_os(variable).unwrap_or_else(|| length.into());
                command.env(variable, length);
            }
        }
        // Show seeds and counts even if all tests pass.
        command.args(["--", "--show-output"]);
        if self.serial {
            command.args(["--test-threads", "1"]);
        }
        Ok(command)
    }
}

/// The totals over all tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    failed_tests: u64,
    storms: u64,
    records: u64,
    /// The number of runs of keys that had run before, by cause.
    runs_again: BTreeMap<String, u64>,
    violations: u64,
}

impl Summary {
    pub(crate) fn from_output(lines: &[String]) -> Self {
        let mut summary = Self::default();
        for line in lines {
            let is_test = line.starts_with("test ");
            summary.failed_tests += u64::from(is_test && line.ends_with(" ... FAILED"));
            if let Some(line) = line.strip_prefix("storm: ") {
                summary.add_storm(line);
            }
        }
        summary
    }

    /// Parses `storm: cut: 20 records, 18 keys, 3 runs again (1 failed, 2 suspended), 0 violations;
    /// …`.
    fn add_storm(&mut self, line: &str) {
        self.storms += 1;
        self.records += number_before(line, " records").unwrap_or_default();
        let causes = line.split_once(" runs again (").and_then(|(_, rest)| rest.split_once(')'));
        for count in causes.into_iter().flat_map(|(causes, _)| causes.split(", ")) {
            if let Some((Ok(runs), cause)) =
                count.split_once(' ').map(|(n, cause)| (n.parse::<u64>(), cause))
            {
                *self.runs_again.entry(cause.to_owned()).or_default() += runs;
            }
        }
        // A line without a count of violations counts as one violation.
        self.violations += number_before(line, " violations").unwrap_or(1);
    }
}

fn number_before(text: &str, words: &str) -> Option<u64> {
    let (before, _) = text.split_once(words)?;
    before.rsplit(' ').next()?.parse().ok()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failed_tests, storms, records, runs_again, violations } = self;
        let runs: u64 = runs_again.values().sum();
        let causes = runs_again.iter().map(|(cause, runs)| format!("{runs} {cause}"));
        let causes = causes.collect::<Vec<_>>().join(", ");
        write!(f, "{storms} storms, {records} records, {runs} runs again ({causes})")?;
        write!(f, ", {violations} violations, {failed_tests} tests failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(lines: &[&str]) -> String {
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        Summary::from_output(&lines).to_string()
    }

    #[test]
    fn summary_counts_records_runs_per_cause_and_violations() {
        let text = summary(&[
            "running 3 tests",
            "storm: hung: 3150 records, 2850 keys, 6 runs again (2 dropped, 4 suspended), 0 violations; 17 begun",
            "storm: cut: 100 records, 90 keys, 1 runs again (1 suspended), 2 violations; 17 begun",
            "storm: moved: 3102 records, 2802 keys, 0 runs again (), 0 violations; seed 1",
            "test hang::hung ... ok",
            "test network::cut ... FAILED",
        ]);
        assert_eq!(
            text,
            "3 storms, 6352 records, 7 runs again (2 dropped, 5 suspended), 2 violations, 1 tests failed"
        );
    }

    #[test]
    fn storm_without_violation_count_has_one_violation() {
        assert!(summary(&["storm: hung: half a li"]).contains(" 1 violations"));
    }
}
