use crate::Result;
use crate::binaries::Binary;
use crate::libtest;
use crate::progress::now;
use crate::supervise::{Finished, supervise};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The time limit of one test without a mutant.
const TEST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How many times its usual duration a test may take, and how much longer, before it has found a
/// mutant. A mutant that hangs takes this time twice. The limit is short because it does not decide
/// alone: the test must also end within it without the mutant, between the two runs.
const SLOWDOWN: u32 = 5;
const GRACE: Duration = Duration::from_secs(5);

/// How long the tests of a group take.
const GROUP_DURATION: Duration = Duration::from_secs(1);

/// One test of a binary.
#[derive(Debug)]
pub(super) struct Test {
    binary: Binary,
    name: String,
    /// How long it took without a mutant.
    pub(super) duration: Duration,
    /// The mutants that it reached.
    pub(super) reached: BTreeSet<usize>,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    TimedOut,
}

impl Test {
    /// Lists the tests of a binary.
    pub(super) fn list(binary: &Binary) -> Result<Vec<Self>> {
        let mut command = binary.command();
        command.arg("--list").stderr(Stdio::null());
        let finished = supervise(&mut command, TEST_TIMEOUT, &mut io::sink())?;
        let test = |name| Self {
            binary: binary.clone(),
            name,
            duration: TEST_TIMEOUT,
            reached: BTreeSet::new(),
        };
        Ok(libtest::parse_list(&finished.lines).into_iter().map(test).collect())
    }

    /// Runs the test without a mutant, and records which of this number of mutants it reaches: none if
    /// it fails.
    pub(super) fn trace(&mut self, mutants: usize, file: &Path) -> Result {
        let mut command = command(&[self]);
        command.env("MUTANT_TRACE", file).env("MUTANT_COUNT", mutants.to_string());
        let start = now();
        let finished = supervise(&mut command, TEST_TIMEOUT, &mut io::sink())?;
        self.duration = start.elapsed();
        if outcome(&finished) != Outcome::Passed {
            eprintln!("left out, because it failed without a mutant: {self}");
            return Ok(());
        }
        // A test that reaches none writes no file.
        let text = if file.exists() { fs::read_to_string(file)? } else { String::new() };
        self.reached = text.lines().map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok(())
    }

    fn has_failed(&self, finished: &Finished) -> bool {
        let mut results = finished.lines.iter().filter_map(|line| libtest::parse_result(line));
        results.any(|(name, result)| name == self.name && result == "FAILED")
    }
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        (&self.binary.path, &self.name) == (&other.binary.path, &other.name)
    }
}

impl Eq for Test {}

impl Hash for Test {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.binary.path, &self.name).hash(state);
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.binary.name, self.name)
    }
}

/// Divides tests into groups of one binary each, which run together: starting a process takes longer
/// than most tests. The groups are in the order of their first tests.
pub(super) fn group(tests: Vec<&Test>) -> Vec<Vec<&Test>> {
    let mut groups = Vec::<Vec<&Test>>::new();
    // The last group of each binary.
    let mut last = BTreeMap::<&Path, usize>::new();
    for test in tests {
        let duration = |group: &[&Test]| group.iter().map(|test| test.duration).sum::<Duration>();
        match last.get(&*test.binary.path) {
            Some(&last) if duration(&groups[last]) < GROUP_DURATION => groups[last].push(test),
            _ => {
                last.insert(&test.binary.path, groups.len());
                groups.push(vec![test]);
            }
        }
    }
    groups
}

/// Runs tests of one binary, one after the other, and with a mutant if there is one. Returns how they
/// ended, and those that are known to have failed.
pub(super) fn run<'a>(
    tests: &[&'a Test],
    mutant: Option<usize>,
) -> Result<(Outcome, Vec<&'a Test>)> {
    let usual: Duration = tests.iter().map(|test| test.duration).sum();
    let mut command = command(tests);
    if let Some(mutant) = mutant {
        command.env("MUTANT", mutant.to_string());
    }
    let finished = supervise(&mut command, usual * SLOWDOWN + GRACE, &mut io::sink())?;
    let failed = tests.iter().copied().filter(|test| test.has_failed(&finished)).collect();
    Ok((outcome(&finished), failed))
}

fn command(tests: &[&Test]) -> Command {
    let mut command = tests[0].binary.command();
    command.args(["--test-threads", "1", "--exact"]).args(tests.iter().map(|test| &test.name));
    command.stderr(Stdio::null());
    command
}

fn outcome(finished: &Finished) -> Outcome {
    match finished.status {
        Some(status) if status.success() && libtest::has_finished(&finished.lines) => {
            Outcome::Passed
        }
        Some(_) => Outcome::Failed,
        None => Outcome::TimedOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_grouped_by_binary_until_they_take_a_while() {
        let test = |binary: &str, name: &str, millis| Test {
            binary: Binary { folder: "p".into(), name: binary.into(), path: binary.into() },
            name: name.into(),
            duration: Duration::from_millis(millis),
            reached: BTreeSet::new(),
        };
        let tests = [
            test("a", "1", 10),
            test("b", "2", 5000),
            test("a", "3", 980),
            test("a", "4", 20),
            test("a", "5", 1),
        ];
        let groups = group(tests.iter().collect());
        let names = |group: &Vec<&Test>| group.iter().map(|test| &*test.name).collect::<String>();
        assert_eq!(groups.iter().map(names).collect::<Vec<_>>(), ["134", "2", "5"]);
    }
}
