//! What libFuzzer prints.

use super::targets::Target;
use crate::Result;
use std::fmt;

/// What targets have explored.
pub(super) struct Explored {
    seed: u32,
    /// For each target.
    seconds: u64,
    rows: Vec<Row>,
}

struct Row {
    target: &'static Target,
    executions: u64,
    /// The edges of the control flow that were reached.
    edges: u64,
    /// The inputs that reach them.
    inputs: u64,
    crashed: bool,
}

impl Explored {
    pub(super) fn new(seed: u32, seconds: u64) -> Self {
        Self { seed, seconds, rows: Vec::new() }
    }

    /// Adds a target, from the lines that libFuzzer printed and whether it ended by itself.
    pub(super) fn add(&mut self, target: &'static Target, lines: &[String], ended: bool) {
        let last = |name: &str| lines.iter().rev().find_map(|line| number_after(line, name));
        let executions = last("stat::number_of_executed_units:").unwrap_or(0);
        let (edges, inputs) = (last(" cov:").unwrap_or(0), last(" corp:").unwrap_or(0));
        let crashed = !ended || executions == 0;
        self.rows.push(Row { target, executions, edges, inputs, crashed });
    }

    /// Fails if a target has crashed.
    pub(super) fn check(&self) -> Result {
        let crashed: Vec<_> =
            self.rows.iter().filter(|row| row.crashed).map(|row| row.target).collect();
        if crashed.is_empty() {
            return Ok(());
        }
        let folders: Vec<_> =
            crashed.iter().map(|target| format!("{}/crashes", target.inputs())).collect();
        Err(format!("{self}; the inputs are in {}", folders.join(", ")).into())
    }

    pub(super) fn to_markdown(&self) -> String {
        let (seed, seconds) = (self.seed, self.seconds);
        let mut text = format!(
            "{self}. Each target ran for {seconds} s, with seed {seed}. The inputs are those that \
             libFuzzer keeps, each of which reaches a new edge, or reaches one more often than all before it.\n\n\
             | target | what the bytes are, and what is checked | executions | edges reached | inputs | crashes |\n\
             |---|---|---|---|---|---|"
        );
        for Row { target, executions, edges, inputs, crashed } in &self.rows {
            let Target { package, checks, .. } = target;
            let (name, crashes) = (target.name(), u8::from(*crashed));
            text.push_str(&format!(
                "\n| `{name}` of {package} | {checks} | {executions} | {edges} | {inputs} | {crashes} |"
            ));
        }
        text
    }
}

/// The totals.
impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executions: u64 = self.rows.iter().map(|row| row.executions).sum();
        let crashes = self.rows.iter().filter(|row| row.crashed).count();
        let targets = self.rows.len();
        let hours = (self.seconds * targets as u64) as f64 / 3600.0;
        write!(
            f,
            "{targets} fuzz targets, {executions} executions, {hours:.2} hours, {crashes} crashes"
        )
    }
}

/// Reads the number after a name, such as `78` of `corp: 78/9Kb`.
fn number_after(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(name)?;
    let digits = rest.trim_start().split(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::targets::TARGETS;

    fn explored(lines: &[&str], ended: bool) -> Explored {
        let mut explored = Explored::new(7, 1800);
        let lines: Vec<_> = lines.iter().map(|&line| line.to_owned()).collect();
        explored.add(&TARGETS[0], &lines, ended);
        explored
    }

    const LINES: &[&str] = &[
        "#2\tINITED cov: 10 ft: 11 corp: 1/4b exec/s: 0 rss: 30Mb",
        "#9000\tDONE   cov: 123 ft: 456 corp: 78/9Kb lim: 4096 exec/s: 9000 rss: 50Mb",
        "stat::number_of_executed_units: 9001",
    ];

    #[test]
    fn last_numbers_count() {
        let explored = explored(LINES, true);
        assert!(explored.check().is_ok());
        assert_eq!(explored.to_string(), "1 fuzz targets, 9001 executions, 0.50 hours, 0 crashes");
        let text = explored.to_markdown();
        assert!(text.contains("seed 7") && text.ends_with("| 9001 | 123 | 78 | 0 |"), "{text}");
    }

    #[test]
    fn crash_and_target_that_did_not_run_fail() {
        for explored in [explored(LINES, false), explored(&["running 0 tests"], true)] {
            let error = explored.check().unwrap_err().to_string();
            assert!(error.contains("1 crashes") && error.contains("fuzz/entry/crashes"), "{error}");
        }
    }
}
