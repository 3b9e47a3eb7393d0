//! The rules of the runs of a key: causes, overlaps, tokens and attempts.

use super::findings::Findings;
use super::index::{Index, Key, Run};
use super::order::is_later;
use super::pair::{Pair, began_late};
use crate::Rule;

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for key in &index.keys {
        let runs = key.runs.iter().map(|&run| &index.runs[run]);
        check_key(index, findings, key, runs);
    }
}

/// Judges the runs of a key, in the order in which they began.
fn check_key<'a>(
    index: &'a Index<'a>,
    findings: &mut Findings<'_>,
    key: &Key<'_>,
    runs: impl Iterator<Item = &'a Run>,
) {
    let mut last: Option<&Run> = None;
    let mut last_guarded: Option<&Run> = None;
    // The earlier run with a lock that is over last.
    let mut longest: Option<&Run> = None;
    for run in runs {
        let is_guarded = run.token.is_some();
        let guarded = last_guarded.filter(|_| is_guarded);
        if let Some(first) = guarded.or(last) {
            check_cause(index, findings, &key.name, first, run);
        }
        if let (Some(first), Some(longest)) = (guarded, longest) {
            check_overlap(index, findings, &key.name, [longest, first], run);
            if began_late(index, first, run).is_some() {
                continue;
            }
        }
        last = Some(run);
        if !is_guarded {
            continue;
        }
        check_attempt(index, findings, key, guarded, run);
        last_guarded = Some(run);
        if longest.is_none_or(|longest| !is_later(index.over(longest), index.over(run))) {
            longest = Some(run);
        }
    }
}

fn check_cause(index: &Index<'_>, findings: &mut Findings<'_>, key: &str, first: &Run, run: &Run) {
    match Pair::new(index, first, run).cause() {
        Some(cause) => findings.rerun(cause, key, first.begin, run.begin),
        None => {
            let text = || format!("{key} ran again, and nothing explains it");
            findings.violation(Rule::Unexplained, key, text, events_of([first, run]));
        }
    }
}

fn check_overlap(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    key: &str,
    before: [&Run; 2],
    run: &Run,
) {
    let overlaps = |before: &&Run| {
        let is_over = index.over(before).is_some_and(|over| over <= run.began);
        !is_over && !Pair::new(index, before, run).may_overlap()
    };
    if let Some(before) = before.into_iter().find(overlaps) {
        let text = || format!("two runs of {key} overlapped, although no lock was lost");
        findings.violation(Rule::Overlap, key, text, events_of([before, run]));
    }
}

/// Judges token and attempt of a run, given the previous one with a lock.
fn check_attempt(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    key: &Key<'_>,
    previous: Option<&Run>,
    run: &Run,
) {
    let Some(token) = run.token else { return };
    let attempt = u64::from(run.attempt.unwrap_or(1));
    let counted = previous.map_or(0, |first| u64::from(first.attempt.unwrap_or(1)));
    let name = &*key.name;
    let explained = match previous {
        // Attempts may have been counted while the lock of the first was ending, before its begin.
        Some(first) => {
            let from = first.began.saturating_sub(index.faults.lock_ttl);
            index.uncounted(key, from, first.began, run.began)
        }
        None => index.uncounted_since_sent(key, run.began),
    };
    if u128::from(attempt) > u128::from(counted) + 1 + explained {
        let text = || {
            format!("{name} began attempt {attempt}, and {counted} were counted in the run before")
        };
        let events = events_of(previous.into_iter().chain([run]));
        findings.violation(Rule::AttemptWithoutRun, name, text, events);
    }
    let Some(first) = previous else { return };
    let pair = Pair::new(index, first, run);
    if Some(token) <= first.token && !pair.lost_writes && !pair.evicted && !pair.is_rerun {
        let text = || format!("the fencing token of {name} did not rise");
        findings.violation(Rule::Token, name, text, events_of([first, run]));
    }
    let killed = index.faults.killed(first.process);
    let was_killed = first.end.is_none() && killed.is_some_and(|at| at <= run.began);
    let must_rise = was_killed && !pair.may_expire();
    if !pair.may_forget() && (attempt < counted || must_rise && attempt == counted) {
        let text =
            || format!("{name} began attempt {attempt} after attempt {counted}, which counts");
        findings.violation(Rule::AttemptNotCounted, name, text, events_of([first, run]));
    }
}

/// Lists all events of these runs.
pub(super) fn events_of<'a>(
    runs: impl IntoIterator<Item = &'a Run>,
) -> impl Iterator<Item = usize> {
    runs.into_iter().flat_map(|run| {
        let end = run.end.map(|end| end.event);
        let processed = run.processed().map(|(_, event)| event);
        let events = [Some(run.begin), run.effect, end, processed].into_iter().flatten();
        events.chain(run.visible.iter().copied())
    })
}
