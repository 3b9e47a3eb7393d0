//! What the judge decides.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::printable::Printable;
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
    /// The number of records that were sent, and of their copies.
    pub records: usize,
    /// The number of keys, including records without one.
    pub keys: usize,
    /// The number of runs.
    pub runs: usize,
    /// What was not read, and what cannot be found because the history lacks the events for it, in
    /// sentences.
    pub notes: Vec<String>,
    /// Each run of a key that had run before and could run again, by key and time.
    pub reruns: Vec<Rerun>,
    /// What the history shows and must not, by rule and time. There is at most one violation of
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

    /// Counts the violations of each rule.
    pub fn rules(&self) -> BTreeMap<Rule, usize> {
        count(self.violations.iter().map(|violation| violation.rule))
    }

    /// Counts the reruns of each cause.
    pub fn causes(&self) -> BTreeMap<Cause, usize> {
        count(self.reruns.iter().map(|rerun| rerun.cause))
    }
}

fn count<T: Ord>(items: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// How many violations of a rule are printed. One cause often has many: if a record is not finished,
/// each later one of its queue begins too early.
const MAX_VIOLATIONS: usize = 10;

/// How many of the first events of a violation, and how many of the last, are printed.
const MAX_EVENTS: usize = 10;

/// Prints a summary, the notes, the rules and the causes, and the first 10 violations of each rule with
/// their first and last 10 events. Control characters are escaped.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}, {}, {}, {}: ",
            counted(self.events, "event", "events"),
            counted(self.processes, "process", "processes"),
            counted(self.records, "record", "records"),
            counted(self.keys, "key", "keys"),
            counted(self.runs, "run", "runs"),
        )?;
        match self.violations.len() {
            0 => f.write_str("sound")?,
            count => f.write_str(&counted(count, "violation", "violations"))?,
        }
        for note in &self.notes {
            write!(f, "\nnote: {}", Printable(note))?;
        }
        let rules = self.rules();
        for (rule, count) in &rules {
            write!(f, "\n{count} of `{rule}`: {}", rule.description())?;
        }
        for (cause, count) in self.causes() {
            let runs = counted(count, "run again", "runs again");
            write!(f, "\n{runs}: {}", cause.description())?;
        }
        for (rule, count) in rules {
            let of_rule = self.violations.iter().filter(|violation| violation.rule == rule);
            for violation in of_rule.take(MAX_VIOLATIONS) {
                write!(f, "\n\n{violation}")?;
            }
            if count > MAX_VIOLATIONS {
                write!(f, "\n\n{rule}: {} more", count - MAX_VIOLATIONS)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, Printable(&self.text))?;
        let left_out = self.events.len().saturating_sub(2 * MAX_EVENTS);
        for (number, event) in self.events.iter().enumerate() {
            if left_out == 0 || !(MAX_EVENTS..MAX_EVENTS + left_out).contains(&number) {
                write!(f, "\n  {event}")?;
            } else if number == MAX_EVENTS {
                write!(f, "\n  {}", counted(left_out, "more event", "more events"))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, at, .. } = self;
        let [file, process, text] = [&self.file, &self.process, &self.text].map(|it| Printable(it));
        write!(f, "{:.6} s  {process}: {text}  ({file}:{line})", seconds(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_producer_forges_no_line() {
        let event = Excerpt {
            file: "w-1.jsonl".into(),
            line: 2,
            process: "w-1".into(),
            at: 1,
            text: "payments/0@0 is sent, with key é\nsound: \u{1b}[31m".into(),
        };
        let violation = Violation {
            rule: Rule::Unexplained,
            subject: String::new(),
            text: "é\r ran again".into(),
            events: vec![event],
        };
        let text = "unexplained: é\\u{d} ran again\n  \
                    0.000001 s  w-1: payments/0@0 is sent, with key é\\u{a}sound: \\u{1b}[31m  (w-1.jsonl:2)";
        assert_eq!(violation.to_string(), text);
    }
}
