//! The tests that are run for a mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use xtask::Result;
use xtask::binaries::Binary;
use xtask::libtest;
use xtask::progress::now;
use xtask::supervise::{Finished, supervise};

/// The time limit of one test without a mutant.
const TEST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How many times its usual duration a test may take, and how much longer, before it has found a
/// mutant. A mutant that hangs takes this time twice. The limit is short because it does not decide
/// alone: the test must also end within it without the mutant, between the two runs.
const SLOWDOWN: u32 = 5;
const GRACE: Duration = Duration::from_secs(5);

/// How long the tests of a group take, besides what its process does first.
const GROUP_DURATION: Duration = Duration::from_secs(1);

/// One test of a binary.
#[derive(Debug)]
pub(crate) struct Test {
    binary: Binary,
    name: String,
    /// How long it took without a mutant.
    pub(crate) duration: Duration,
    /// The mutants that it reached.
    pub(crate) reached: BTreeSet<usize>,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    TimedOut,
}

impl Test {
    /// Lists the tests of a binary.
    pub(crate) fn list(binary: &Binary) -> Result<Vec<Self>> {
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
    pub(crate) fn trace(&mut self, mutants: usize, file: &Path) -> Result {
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

/// Tests of a binary that run together, one after the other.
pub(crate) struct Group<'a> {
    tests: Vec<&'a Test>,
    /// How long they take without a mutant.
    duration: Duration,
}

/// Divides tests into groups of one binary each, because what a process does first, such as starting
/// a server, takes longer than most tests. The groups are in the order of their first tests.
pub(crate) fn group(tests: Vec<&Test>) -> Vec<Group<'_>> {
    // What each test of a binary takes at least is what its process does first.
    let mut starts = BTreeMap::<&Path, Duration>::new();
    for test in &tests {
        let start = starts.entry(&test.binary.path).or_insert(test.duration);
        *start = test.duration.min(*start);
    }
    let mut groups = Vec::<Group<'_>>::new();
    // The last group of each binary.
    let mut last = BTreeMap::<&Path, usize>::new();
    for test in tests {
        let start = starts[&*test.binary.path];
        match last.get(&*test.binary.path) {
            Some(&last) if groups[last].duration < start + GROUP_DURATION => {
                groups[last].tests.push(test);
                groups[last].duration += test.duration - start;
            }
            _ => {
                last.insert(&test.binary.path, groups.len());
                groups.push(Group::from(test));
            }
        }
    }
    groups
}

impl<'a> From<&'a Test> for Group<'a> {
    fn from(test: &'a Test) -> Self {
        Self { tests: vec![test], duration: test.duration }
    }
}

impl<'a> Group<'a> {
    /// Runs the tests, with a mutant if there is one. Returns how they ended, and those that are known
    /// to have failed.
    pub(crate) fn run(&self, mutant: Option<usize>) -> Result<(Outcome, Vec<&'a Test>)> {
        let mut command = command(&self.tests);
        if let Some(mutant) = mutant {
            command.env("MUTANT", mutant.to_string());
        }
        let finished = supervise(&mut command, self.duration * SLOWDOWN + GRACE, &mut io::sink())?;
        let failed = self.tests.iter().copied().filter(|test| test.has_failed(&finished));
        Ok((outcome(&finished), failed.collect()))
    }
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
            binary: Binary {
                package: "p".into(),
                folder: "p".into(),
                name: binary.into(),
                path: binary.into(),
                is_test: true,
            },
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
        let names = |group: &Group<'_>| group.tests.iter().map(|test| &*test.name).collect();
        assert_eq!(groups.iter().map(names).collect::<Vec<String>>(), ["134", "2", "5"]);
        let durations: Vec<_> = groups.iter().map(|group| group.duration.as_millis()).collect();
        assert_eq!(durations, [1008, 5000, 1]);
    }
}
