//! What the judge decides.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::story::seconds;
use crate::{Cause, Rule};

/// The judge's decision about a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The version of the format.
    pub version: u32,
    /// The number of processes that recorded events.
    pub processes: usize,
    /// The number of events.
    pub events: usize,
    /// The number of last lines without an end, which were ignored.
    pub torn_lines: usize,
    /// The number of records that were sent, and of their copies.
    pub records: usize,
    /// The number of keys, including records without one.
    pub keys: usize,
    /// The number of runs.
    pub runs: usize,
    /// Each run of a key that had run before and could run again, by key and time.
    pub reruns: Vec<Rerun>,
    /// What the history shows and must not, by rule and subject. There is at most one violation of
    /// a rule for each subject.
    pub violations: Vec<Violation>,
}

/// A run of a key that had run before, and the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rerun {
    /// The idempotency key, or the coordinates of a record without one.
    pub key: String,
    /// Why the key could run again.
    pub cause: Cause,
    /// The start of the earlier run.
    pub first: Excerpt,
    /// The start of the later run.
    pub again: Excerpt,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The key, the record or the partition.
    pub subject: String,
    /// What happened, as a sentence.
    pub text: String,
    /// The events that show it, in order.
    pub events: Vec<Excerpt>,
}

/// An event, and where it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Excerpt {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The process that recorded the event.
    pub process: String,
    /// When it happened, in microseconds of the history's clock.
    pub at: u64,
    /// The event in words.
    pub text: String,
}

impl Verdict {
    /// Checks that there is no violation.
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// Counts the reruns of each cause.
    pub fn causes(&self) -> BTreeMap<Cause, usize> {
        let mut causes = BTreeMap::new();
        for rerun in &self.reruns {
            *causes.entry(rerun.cause).or_default() += 1;
        }
        causes
    }
}

/// Prints a summary, the causes, and each violation with its events.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.violations.len() {
            0 => write!(f, "sound")?,
            1 => write!(f, "1 violation")?,
            count => write!(f, "{count} violations")?,
        }
        writeln!(
            f,
            ": {} events of {} processes, {} records, {} keys, {} runs",
            self.events, self.processes, self.records, self.keys, self.runs
        )?;
        if self.torn_lines > 0 {
            writeln!(f, "ignored incomplete last lines: {}", self.torn_lines)?;
        }
        for (cause, count) in self.causes() {
            writeln!(f, "{count} runs again: {}", cause.description())?;
        }
        for violation in &self.violations {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.rule, self.text)?;
        self.events.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, process, at, text } = self;
        write!(f, "{:.6} s  {process}: {text}  ({file}:{line})", seconds(*at))
    }
}
