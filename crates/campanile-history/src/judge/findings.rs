//! What the rules have found.

use std::collections::{BTreeSet, HashSet};

use super::index::Index;
use crate::story::describe;
use crate::{Cause, Event, Excerpt, Rerun, Rule, Verdict, Violation};

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
        let at = |event: &usize| self.index.history.events[*event].event.at();
        events.sort_by_key(at);
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

/// Says what was not read, and what cannot be found in a history without some events.
fn notes(index: &Index<'_>) -> Vec<String> {
    let history = index.history;
    let mut notes = Vec::new();
    if !history.torn.is_empty() {
        let torn = history.torn.iter().map(|(file, line)| format!("{file}:{line}"));
        notes.push(format!("lines ignored, because they have no end: {}", join(torn)));
    }
    if history.other_files > 0 {
        let count = history.other_files;
        notes.push(format!("files ignored, because their names do not end in .jsonl: {count}"));
    }
    let processes: HashSet<_> = history.processes.iter().map(|process| &process.name).collect();
    let faults = history.events.iter().filter_map(|line| match &line.event {
        Event::Fault(fault) => fault.kind.process(),
        _ => None,
    });
    let unknown: BTreeSet<_> = faults.filter(|name| !processes.contains(name)).collect();
    if !unknown.is_empty() {
        let unknown = join(unknown.into_iter().cloned());
        notes.push(format!("processes that have faults and no header: {unknown}"));
    }
    let has = |is: fn(&Event) -> bool| history.events.iter().any(|line| is(&line.event));
    let missing = [
        (
            index.records.iter().any(|record| record.origin.is_some()),
            "no record is `sent`, so none can be found lost",
        ),
        (
            index.runs.iter().any(|run| run.token.is_some()),
            "no run has a `token`, so each may run again and overlap others",
        ),
        (
            index.runs.iter().any(|run| run.attempt.is_some()),
            "no run has an `attempt`, so attempts are not checked",
        ),
        (has(|event| matches!(event, Event::Commit(_))), "there is no `commit` to check"),
        (has(|event| matches!(event, Event::Entry(_))), "there is no `entry` to check"),
    ];
    let texts = missing.iter().filter(|(is_there, _)| !is_there).map(|(_, text)| (*text).into());
    notes.extend(texts);
    notes
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}
