//! What the rules have found.

use std::collections::HashSet;

use super::index::Index;
use super::notes::notes;
use crate::story::describe;
use crate::{Cause, Excerpt, Rerun, Rule, Verdict, Violation};

/// Collects violations and reruns.
pub(super) struct Findings<'a> {
    index: &'a Index<'a>,
    found: HashSet<(Rule, String)>,
    violations: Vec<Violation>,
    reruns: Vec<Rerun>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(index: &'a Index<'a>) -> Self {
        Self { index, found: HashSet::new(), violations: Vec::new(), reruns: Vec::new() }
    }

    /// Adds a violation, shown by these events. Only the first one of a rule and a subject is kept.
    pub(super) fn violation(
        &mut self,
        rule: Rule,
        subject: impl Into<String>,
        text: impl FnOnce() -> String,
        events: impl IntoIterator<Item = usize>,
    ) {
        let subject = subject.into();
        if !self.found.insert((rule, subject.clone())) {
            return;
        }
        let mut events: Vec<usize> = events.into_iter().collect();
        events.sort_unstable_by_key(|&event| (self.index.history.events[event].event.at(), event));
        events.dedup();
        let events = events.into_iter().map(|event| self.excerpt(event)).collect();
        self.violations.push(Violation { rule, subject, text: text(), events });
    }

    /// Adds the cause for which a key ran again.
    pub(super) fn rerun(&mut self, cause: Cause, key: &str, first: usize, again: usize) {
        let (first, again) = (self.excerpt(first), self.excerpt(again));
        self.reruns.push(Rerun { key: key.into(), cause, first, again });
    }

    fn excerpt(&self, event: usize) -> Excerpt {
        let line = &self.index.history.events[event];
        let process = &self.index.history.processes[line.process];
        Excerpt {
            file: process.file.clone(),
            line: line.number,
            process: process.name.clone(),
            at: line.event.at(),
            text: describe(&line.event),
        }
    }

    pub(super) fn into_verdict(self) -> Verdict {
        let Self { index, mut violations, mut reruns, .. } = self;
        let at = |violation: &Violation| violation.events.last().map(|event| event.at);
        violations.sort_by(|a, b| (a.rule, at(a), &a.subject).cmp(&(b.rule, at(b), &b.subject)));
        reruns.sort_by(|a, b| (&a.key, a.again.at).cmp(&(&b.key, b.again.at)));
        Verdict {
            version: crate::VERSION,
            processes: index.history.processes.len(),
            events: index.history.events.len(),
            records: index.records.iter().filter(|record| record.origin.is_some()).count(),
            keys: index.keys.len(),
            runs: index.runs.len(),
            notes: notes(index),
            reruns,
            violations,
        }
    }
}
