//! The rule of entries: an entry agrees with the runs of its key.

use super::findings::Findings;
use super::index::{Index, Key};
use crate::{Entry, Event, How, Rule, State};

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
        .filter_map(|run| Some((run.token?, run.end.filter(|end| end.how == How::Ok)?.at)))
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
        let before = recorded.partition_point(|((at, _), ..)| *at <= entry.at);
        let Some(((_, answer), token, run)) = before.checked_sub(1).map(|last| &recorded[last])
        else {
            continue;
        };
        let is_kept = entry.state == State::Completed && entry.token >= Some(*token);
        let faults = &index.faults;
        let reopened = key.reopened.partition_point(|at| *at < run.began);
        let until = entry.at.max(run.began);
        let may_be_lost = faults.lost_writes(run.began, until)
            || faults.evicted(run.began, until)
            || key.reopened.get(reopened).is_some_and(|at| *at <= until);
        if !is_kept && !may_be_lost {
            let text = || format!("{} was processed, and its entry does not say so", key.name);
            findings.violation(Rule::Entry, &*key.name, text, [run.begin, *answer, event]);
        }
    }
}

/// Checks whether the run with the entry's token has ended with `ok` before the entry was read.
fn is_success(successes: &[(u64, u64)], entry: &Entry) -> bool {
    let Some(token) = entry.token else { return false };
    let first = successes.partition_point(|(of, _)| *of < token);
    successes.get(first).is_some_and(|(of, at)| *of == token && *at <= entry.at)
}
