//! The rule for entries: `entry`.

use super::Findings;
use super::read::{Entry, Time};
use super::terms::{Key, KeyRun, Terms, touch};

pub(super) fn entry(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for entry in &key.entries {
            if completed_by_no_run(key, entry)
                || not_kept(terms, key, entry)
                || not_visible(terms, key, entry)
            {
                findings.violated("entry", name);
            }
        }
        if key.given_up.iter().any(|answer| given_up_after_processed(terms, key, *answer)) {
            findings.violated("entry", name);
        }
    }
}

/// Checks (a).
fn completed_by_no_run(key: &Key<'_>, entry: &Entry) -> bool {
    let by_run = key.runs.iter().any(|run| {
        run.run.token.is_some()
            && run.run.token == entry.token
            && run.success().is_some_and(|success| success <= entry.at)
    });
    entry.state == "completed" && !by_run
}

/// Checks (b).
fn not_kept(terms: &Terms<'_>, key: &Key<'_>, entry: &Entry) -> bool {
    let runs = key.runs.iter().filter(|run| run.run.token.is_some());
    let processed = runs.filter(|run| run.processed().is_some_and(|at| at <= entry.at));
    let last = processed.max_by_key(|run| run.answer.map(|answer| (answer.at, answer.line)));
    let Some(r) = last else { return false };
    (entry.state != "completed" || entry.token < r.run.token) && !excused(terms, key, r, entry)
}

/// Checks (c).
fn not_visible(terms: &Terms<'_>, key: &Key<'_>, entry: &Entry) -> bool {
    let runs = key.runs.iter().filter(|run| run.run.token.is_some());
    let begun = runs.filter(|run| run.run.begin <= entry.at);
    let visible = begun.filter(|run| run.visible.iter().any(|at| *at <= entry.at));
    let last = visible.max_by_key(|run| run.run.begin);
    last.is_some_and(|r| entry.state != "completed" && !excused(terms, key, r, entry))
}

/// Checks (d), for an answer `given_up` at this time.
fn given_up_after_processed(terms: &Terms<'_>, key: &Key<'_>, answer: Time) -> bool {
    let mut runs = key.runs.iter().filter(|run| run.run.token.is_some());
    let processed = runs.any(|run| run.processed().is_some_and(|at| at <= answer));
    processed && terms.shows_failed(key, answer)
}

fn excused(terms: &Terms<'_>, key: &Key<'_>, r: &KeyRun<'_>, entry: &Entry) -> bool {
    let time = (r.run.begin, entry.at);
    terms.intervals("store_lost_writes").any(|it| touch(it, time))
        || terms.intervals("store_evicted").any(|it| touch(it, time))
        || key.reopened.iter().any(|at| touch((*at, *at), time))
}
