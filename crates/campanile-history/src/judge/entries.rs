//! The rule of entries: an entry agrees with the runs of its key.

use super::findings::Findings;
use super::index::{Index, Key, Run};
use crate::{Entry, Event, Rule, State};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for key in index.keys.iter().filter(|key| !key.entries.is_empty()) {
        check_key(index, findings, key);
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
        .filter_map(|run| Some((run.processed?, run.token?, run)))
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
        let violation = |findings: &mut Findings<'_>, run: &Run, shown| {
            let is_excused = may_be_lost(index, key, run, entry.at);
            if !is_excused {
                let text = || format!("{} was processed, and its entry does not say so", key.name);
                findings.violation(Rule::Entry, &*key.name, text, [run.begin, shown, event]);
            }
        };
        let before = recorded.partition_point(|((at, _), ..)| *at <= entry.at);
        let last = before.checked_sub(1).map(|last| &recorded[last]);
        let is_completed = entry.state == State::Completed;
        if let Some(((_, answer), token, run)) = last
            && (!is_completed || entry.token < Some(*token))
        {
            violation(findings, run, *answer);
        }
        let before = visible.partition_point(|(at, ..)| *at <= entry.at);
        if let Some((_, shown, run)) = before.checked_sub(1).map(|last| &visible[last])
            && !is_completed
        {
            violation(findings, run, *shown);
        }
    }
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
