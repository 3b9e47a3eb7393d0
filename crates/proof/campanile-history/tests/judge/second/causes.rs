//! The causes, and the rule `unexplained`.

use std::cmp::max;

use super::Findings;
use super::read::Time;
use super::terms::{Key, KeyRun, Terms, between};

pub(super) fn unexplained(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (index, n) in key.runs.iter().enumerate() {
            let Some(p) = key.predecessor(index) else { continue };
            match cause(terms, key, p, n) {
                Some(cause) => {
                    let (first, again) = (p.run.place.clone(), n.run.place.clone());
                    findings.causes.insert((name.clone(), cause, first, again));
                }
                None => findings.violated("unexplained", name),
            }
        }
    }
}

fn cause(terms: &Terms<'_>, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> Option<&'static str> {
    if between(&key.reopened, p, n) {
        Some("reopened")
    } else if p.run.token.is_none() || n.run.token.is_none() {
        Some("unguarded")
    } else if n.began_late {
        terms.cause_of_late_begin(key, n)
    } else if terms.rerun(p, n) {
        Some("rolled_back")
    } else if let Some(cause) = cause_of_not_recorded(terms, key, p, n) {
        Some(cause)
    } else if terms.writes_lost(key, p, n) {
        Some("store_lost_writes")
    } else if terms.evicted(key, p, n) {
        Some("store_evicted")
    } else {
        None
    }
}

fn cause_of_not_recorded(
    terms: &Terms<'_>,
    key: &Key<'_>,
    p: &KeyRun<'_>,
    n: &KeyRun<'_>,
) -> Option<&'static str> {
    if terms.recorded(key, p, n.run.begin) || terms.given_up(key, p, n) {
        return None;
    }
    let ended = p.ended(n.run.begin);
    if ended == Some("error") {
        return Some("failed");
    }
    if p.invisible && ended == Some("ok") {
        return Some("rolled_back");
    }
    let kill = terms.kill(p.run).filter(|kill| *kill <= n.run.begin);
    let answered_long_before =
        |kill: Time| p.answer.is_some_and(|answer| kill - answer.at > terms.lock_ttl_or_1());
    if let Some(kill) = kill
        && (p.run.end.is_none() || ended == Some("ok") && !answered_long_before(kill))
    {
        let effect = !p.invisible && (p.run.effect || p.run.end.is_some());
        return Some(if effect { "killed_after_effect" } else { "killed_before_effect" });
    }
    let lost = p.run.end.as_ref().is_some_and(|end| end.lost);
    if ended == Some("dropped") && !lost {
        return Some("dropped");
    }
    if ended == Some("ok")
        && let Some(answer) = p.answer.filter(|answer| answer.outcome == "dropped")
        && terms.store_away_after(p, answer.at, n)
    {
        return Some("dropped_after_success");
    }
    if terms.unlocked(key, p, n) {
        return Some("unlocked");
    }
    if terms.lock_may_have_expired(p, n) {
        let unrenewed = terms.unrenewed(p, n);
        let parts = [
            ("suspended", unrenewed.suspended),
            ("store_unavailable", unrenewed.store_unavailable),
            ("network_cut", unrenewed.network_cut),
            ("clock_stepped", unrenewed.clock_stepped),
        ];
        return parts.iter().find(|(_, part)| *part > 0).map(|(cause, _)| *cause);
    }
    if let (Some("dropped"), Some(end), Some(max_hold)) =
        (ended, &p.run.end, terms.history.max_hold)
        && max(0, end.at - p.run.begin) >= max(0, max_hold - terms.lock_ttl_or_1())
    {
        return Some("max_hold");
    }
    None
}
