//! The rule for entries: `entry`.

use super::Findings;
use super::read::{Entry, Time};
use super::terms::{Key, Terms, touch};

pub(super) fn entry(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for entry in &key.entries {
            if completed_by_no_run(key, entry)
                || not_kept(terms, key, entry)
                || not_visible(terms, key, entry)
                || not_final(terms, key, entry)
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
    let processed = runs.filter(|run| run.processed().is_some_and(|at| at <= entry.since));
    let last = processed.max_by_key(|run| run.answer.map(|answer| (answer.at, answer.line)));
    let Some(r) = last else { return false };
    let is_kept = entry.state == "completed" && entry.token >= r.run.token;
    !is_kept && !excused(terms, key, r.run.begin, entry)
}

/// Checks (c).
fn not_visible(terms: &Terms<'_>, key: &Key<'_>, entry: &Entry) -> bool {
    let runs = key.runs.iter().filter(|run| run.run.token.is_some());
    let begun = runs.filter(|run| run.run.begin <= entry.since);
    let visible = begun.filter(|run| run.visible.iter().any(|at| *at <= entry.since));
    let last = visible.max_by_key(|run| run.run.begin);
    let Some(r) = last else { return false };
    entry.state != "completed" && !excused(terms, key, r.run.begin, entry)
}

/// Checks (d), for an answer `given_up` at this time.
fn given_up_after_processed(terms: &Terms<'_>, key: &Key<'_>, answer: Time) -> bool {
    let mut runs = key.runs.iter().filter(|run| run.run.token.is_some());
    let processed = runs.any(|run| run.processed().is_some_and(|at| at <= answer));
    processed && !terms.stale(key, answer)
}

/// Checks (e).
fn not_final(terms: &Terms<'_>, key: &Key<'_>, entry: &Entry) -> bool {
    let earlier = |state| {
        let entries = key.entries.iter().filter(move |it| it.state == state);
        entries.filter(|it| it.at < entry.since).map(|it| it.since)
    };
    let given_up = key.given_up.iter().copied();
    let shown_as_failed = given_up.filter(|at| *at < entry.since && !terms.stale(key, *at));
    let mut completed = earlier("completed");
    let mut failed = earlier("failed").chain(shown_as_failed);
    entry.state != "completed" && completed.any(|from| !excused(terms, key, from, entry))
        || entry.state != "failed" && failed.any(|from| !excused(terms, key, from, entry))
}

/// Checks whether the key may have changed its state from this time to the entry.
fn excused(terms: &Terms<'_>, key: &Key<'_>, from: Time, entry: &Entry) -> bool {
    let time = (from, entry.at);
    terms.intervals("store_lost_writes").any(|it| touch(it, time))
        || terms.intervals("store_evicted").any(|it| touch(it, time))
        || key.reopened.iter().any(|at| touch((*at, *at), time))
}
