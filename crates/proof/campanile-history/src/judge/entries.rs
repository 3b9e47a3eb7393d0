//! The rule of entries: an entry agrees with the runs of its key.

use std::collections::HashMap;

use super::findings::Findings;
use super::index::{Index, Key, Run};
use crate::{Entry, Event, Outcome, Rule, State};

/// When an entry was read, or a record answered: at the latest, and at the earliest; and the event.
type Seen = (u64, u64, usize);

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    let mut given_up: HashMap<usize, Vec<Seen>> = HashMap::new();
    for answer in index.answers.iter().filter(|answer| answer.outcome == Outcome::GivenUp) {
        let Some(number) = index.records[answer.record].key else { continue };
        let key = &index.keys[number];
        if index.may_be_stale(key, answer.at) {
            continue;
        }
        given_up.entry(number).or_default().push((answer.at, answer.at, answer.event));
        if let Some((processed, event)) = key.first_processed
            && processed <= answer.at
        {
            let text = || format!("{} was processed, and is answered as given up", key.name);
            findings.violation(Rule::Entry, &*key.name, text, [event, answer.event]);
        }
    }
    for (number, key) in index.keys.iter().enumerate().filter(|(_, key)| !key.entries.is_empty()) {
        check_key(index, findings, key);
        check_settled(index, findings, key, given_up.remove(&number).unwrap_or_default());
    }
}

/// Checks that a key that was COMPLETED or FAILED remains so.
fn check_settled(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    key: &Key<'_>,
    mut failed: Vec<Seen>,
) {
    let mut completed = Vec::new();
    for (event, entry) in entries(index, key) {
        let seen = (entry.at, entry.since(), event);
        match entry.state {
            State::Completed => completed.push(seen),
            State::Failed => failed.push(seen),
            _ => {}
        }
    }
    for (state, mut seen) in [(State::Completed, completed), (State::Failed, failed)] {
        // Each has the latest start of all up to it.
        seen.sort_unstable();
        for next in 1..seen.len() {
            let (_, since, event) = seen[next - 1];
            if since > seen[next].1 {
                (seen[next].1, seen[next].2) = (since, event);
            }
        }
        for (event, entry) in entries(index, key).filter(|(_, entry)| entry.state != state) {
            let earlier = seen.partition_point(|(at, ..)| *at < entry.since());
            let Some((_, since, shown)) = earlier.checked_sub(1).map(|last| seen[last]) else {
                continue;
            };
            if !index.may_be_lost(key, since, entry.at) {
                let text = || format!("{} was settled, and its entry does not say so", key.name);
                findings.violation(Rule::Entry, &*key.name, text, [shown, event]);
            }
        }
    }
}

/// Lists the entries of a key.
fn entries<'a>(index: &'a Index<'_>, key: &'a Key<'_>) -> impl Iterator<Item = (usize, &'a Entry)> {
    key.entries.iter().map(|&event| match &index.history.events[event].event {
        Event::Entry(entry) => (event, entry),
        _ => unreachable!("only entries are listed"),
    })
}

fn check_key(index: &Index<'_>, findings: &mut Findings<'_>, key: &Key<'_>) {
    let mut successes: Vec<_> = key
        .runs
        .iter()
        .map(|&run| &index.runs[run])
        .filter_map(|run| Some((run.token?, run.success()?)))
        .collect();
    successes.sort_unstable();
    // The runs that were recorded, by the time of the answer.
    let mut recorded: Vec<_> = key
        .runs
        .iter()
        .map(|&run| &index.runs[run])
        .filter_map(|run| Some((run.processed()?, run.token?, run)))
        .collect();
    recorded.sort_unstable_by_key(|((at, event), ..)| (*at, *event));
    let visible = visible_runs(index, key);
    for (event, entry) in entries(index, key) {
        if entry.state == State::Completed && !is_success(&successes, entry) {
            let text = || {
                format!(
                    "{} is COMPLETED, and no handler with its token had ended with ok",
                    key.name
                )
            };
            let begun = key.runs.iter().map(|&run| index.runs[run].begin);
            findings.violation(Rule::Entry, &*key.name, text, begun.chain([event]));
        }
        let mut contradicts = |run: &Run, shown| {
            if !index.may_be_lost(key, run.began, entry.at.max(run.began)) {
                let text = || format!("{} was processed, and its entry does not say so", key.name);
                findings.violation(Rule::Entry, &*key.name, text, [run.begin, shown, event]);
            }
        };
        let is_completed = entry.state == State::Completed;
        if let Some(((_, answer), token, run)) =
            last_by(&recorded, entry.since(), |((at, _), ..)| *at)
            && (!is_completed || entry.token < Some(*token))
        {
            contradicts(run, *answer);
        }
        if let Some((_, shown, run)) = last_by(&visible, entry.since(), |(at, ..)| *at)
            && !is_completed
        {
            contradicts(run, *shown);
        }
    }
}

/// Finds the last item that is no later than this time, of items sorted by time.
fn last_by<T>(items: &[T], at: u64, time: impl Fn(&T) -> u64) -> Option<&T> {
    let after = items.partition_point(|item| time(item) <= at);
    after.checked_sub(1).map(|last| &items[last])
}

/// Lists when effects became visible, each with the run that began last of all that were visible by
/// then, and the event that shows its effect.
fn visible_runs<'a>(index: &'a Index<'_>, key: &Key<'_>) -> Vec<(u64, usize, &'a Run)> {
    let at = |event: usize| index.history.events[event].event.at();
    let mut visible: Vec<_> = key
        .runs
        .iter()
        .map(|&run| &index.runs[run])
        .filter(|run| run.token.is_some())
        .filter_map(|run| {
            let shown = run.visible.iter().copied().min_by_key(|&event| at(event))?;
            Some((at(shown).max(run.began), shown, run))
        })
        .collect();
    visible.sort_by_key(|(at, ..)| *at);
    for next in 1..visible.len() {
        let (_, shown, run) = visible[next - 1];
        if run.began > visible[next].2.began {
            (visible[next].1, visible[next].2) = (shown, run);
        }
    }
    visible
}

/// Checks whether the run with the entry's token has ended with `ok` before the entry was read.
fn is_success(successes: &[(u64, u64)], entry: &Entry) -> bool {
    let Some(token) = entry.token else { return false };
    let first = successes.partition_point(|(of, _)| *of < token);
    successes.get(first).is_some_and(|(of, at)| *of == token && *at <= entry.at)
}
