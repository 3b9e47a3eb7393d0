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
        check_lock(index, findings, key, guarded, run);
        last_guarded = Some(run);
        if longest.is_none_or(|longest| !is_later(index.over(longest), index.over(run))) {
            longest = Some(run);
        }
    }
}

fn check_cause(index: &Index<'_>, findings: &mut Findings<'_>, key: &str, first: &Run, run: &Run) {
    let pair = Pair::new(index, first, run);
    match pair.cause() {
        Some(cause) => findings.rerun(cause, key, first.begin, run.begin),
        None => {
            let text = || format!("{key} {}", pair.contradiction());
            findings.violation(Rule::Unexplained, key, text, pair.events());
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
    for before in before {
        let pair = Pair::new(index, before, run);
        let is_over = index.over(before).is_some_and(|over| over <= run.began);
        if !is_over && !pair.may_overlap() {
            let text = || format!("two runs of {key} overlapped, and nothing permits it");
            return findings.violation(Rule::Overlap, key, text, pair.events());
        }
    }
}

/// Judges token and attempt of a run, given the previous one with a lock.
fn check_lock(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    key: &Key<'_>,
    previous: Option<&Run>,
    run: &Run,
) {
    let name = &*key.name;
    let Some(first) = previous else {
        let explained = index.uncounted_since_sent(key, run.began);
        if let Some(attempt) = run.attempt.filter(|&it| u128::from(it) > 1 + explained) {
            let text = || {
                format!(
                    "the first run of {name} began attempt {attempt}, and of those before, faults \
                     explain {explained}"
                )
            };
            findings.violation(Rule::AttemptWithoutRun, name, text, run.events());
        }
        return;
    };
    let pair = Pair::new(index, first, run);
    if run.token <= first.token && !pair.lost_writes && !pair.evicted && !pair.is_rerun {
        let text = || format!("the fencing token of {name} did not rise");
        findings.violation(Rule::Token, name, text, pair.events());
    }
    let (Some(attempt), Some(counted)) = (run.attempt, first.attempt) else { return };
    // Attempts may have been counted while the lock of the first was ending, before its begin.
    let from = first.began.saturating_sub(index.faults.lock_ttl);
    let explained = index.uncounted(key, from, first.began, run.began);
    if u128::from(attempt) > u128::from(counted) + 1 + explained {
        let text = || {
            format!(
                "{name} began attempt {attempt} after attempt {counted}, and of those between, \
                 faults explain {explained}"
            )
        };
        findings.violation(Rule::AttemptWithoutRun, name, text, pair.events());
    }
    let was_killed = first.end.is_none() && index.killed(first).is_some_and(|at| at <= run.began);
    let must_rise = was_killed && !pair.may_expire();
    if !pair.may_forget() && (attempt < counted || must_rise && attempt == counted) {
        let text = || match attempt < counted {
            true => format!("{name} began attempt {attempt} after attempt {counted}"),
            false => format!(
                "{name} began attempt {attempt} again after its process was killed, which counts"
            ),
        };
        findings.violation(Rule::AttemptNotCounted, name, text, pair.events());
    }
}
