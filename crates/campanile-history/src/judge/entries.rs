//! The rule of entries: an entry agrees with the runs of its key.

use super::findings::Findings;
use super::index::{Index, Key, Run};
use super::pair::shows_given_up;
use crate::{Entry, Event, Outcome, Rule, State};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for key in index.keys.iter().filter(|key| !key.entries.is_empty()) {
        check_key(index, findings, key);
    }
    for answer in index.answers.iter().filter(|answer| answer.outcome == Outcome::GivenUp) {
        let Some(key) = index.records[answer.record].key else { continue };
        let key = &index.keys[key];
        if let Some((processed, event)) = key.first_processed
            && processed <= answer.at
            && shows_given_up(index, key, answer.at)
        {
            let text = || format!("{} was processed, and is answered as given up", key.name);
            findings.violation(Rule::Entry, &*key.name, text, [event, answer.event]);
        }
    }
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
    for &event in &key.entries {
        let Event::Entry(entry) = &index.history.events[event].event else {
            unreachable!("only entries are listed")
        };
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
            if !may_be_lost(index, key, run, entry.at) {
                let text = || format!("{} was processed, and its entry does not say so", key.name);
                findings.violation(Rule::Entry, &*key.name, text, [run.begin, shown, event]);
            }
        };
        let is_completed = entry.state == State::Completed;
        if let Some(((_, answer), token, run)) = last_by(&recorded, entry.at, |((at, _), ..)| *at)
            && (!is_completed || entry.token < Some(*token))
        {
            contradicts(run, *answer);
        }
        if let Some((_, shown, run)) = last_by(&visible, entry.at, |(at, ..)| *at)
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

/// Checks whether the entry of a run may be lost, removed or reopened when it is read.
fn may_be_lost(index: &Index<'_>, key: &Key<'_>, run: &Run, read: u64) -> bool {
    let (from, until) = (run.began, read.max(run.began));
    let reopened = key.reopened.partition_point(|at| *at < from);
    index.faults.lost_writes(from, until)
        || index.faults.evicted(from, until)
        || key.reopened.get(reopened).is_some_and(|at| *at <= until)
}

/// Checks whether the run with the entry's token has ended with `ok` before the entry was read.
fn is_success(successes: &[(u64, u64)], entry: &Entry) -> bool {
    let Some(token) = entry.token else { return false };
    let first = successes.partition_point(|(of, _)| *of < token);
    successes.get(first).is_some_and(|(of, at)| *of == token && *at <= entry.at)
}
