//! The rules for attempts: `attempt_without_run` and `attempt_not_counted`.

use std::cmp::max;

use super::Findings;
use super::read::{Fault, Time};
use super::runs::pairs;
use super::terms::{Interval, Key, KeyRun, Terms, between, touch};

pub(super) fn attempt_without_run(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let Some((of_p, of_n)) = attempts(p, n) else { continue };
            if of_n <= of_p + 1 {
                continue;
            }
            let from = match p {
                Some(p) => max(p.run.begin - terms.lock_ttl_or_1(), 0),
                None => key.first_sent(n.run.begin),
            };
            let explained = explained_by_faults(terms, key, p, (from, n.run.begin));
            if of_n > of_p + 1 + explained {
                findings.violated("attempt_without_run", name);
            }
        }
    }
}

/// Returns the attempts of a key that are explained by faults within this time, which begins with
/// the begin of `p`, if there is one, for what waits for its turn.
pub(super) fn explained_by_faults(
    terms: &Terms<'_>,
    key: &Key<'_>,
    p: Option<&KeyRun<'_>>,
    time: Interval,
) -> Time {
    let faults = terms.history.faults.iter();
    let faults = faults.filter(|fault| touch(terms.interval(fault), time));
    let weights: Time = faults.map(|fault| weight(terms, fault)).sum();
    let unlocked = key.unlocked.iter().filter(|at| touch((**at, **at), time));
    let unlocked: Time = unlocked.map(|_| 1).sum();
    let length = time.1 - p.map_or(time.0, |p| p.run.begin);
    let waits = terms.history.max_hold.map_or(0, |max_hold| length / max(max_hold, 1));
    weights + unlocked + waits
}

pub(super) fn attempt_not_counted(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let (Some(p), Some((of_p, of_n))) = (p, attempts(p, n)) else { continue };
            let killed = terms.kill(p.run).is_some_and(|kill| kill <= n.run.begin);
            let not_counted =
                p.run.end.is_none() && killed && of_n <= of_p && !terms.lock_may_have_expired(p, n);
            let lowered = of_n < of_p;
            if (not_counted || lowered)
                && !between(&key.reopened, p, n)
                && !terms.writes_lost(key, p, n)
                && !terms.evicted(key, p, n)
            {
                findings.violated("attempt_not_counted", name);
            }
        }
    }
}

/// Returns the attempts of `p` and `n`, unless one of them has none. Without `p`, its attempt is 0.
fn attempts(p: Option<&KeyRun<'_>>, n: &KeyRun<'_>) -> Option<(Time, Time)> {
    let of_p = p.map_or(Some(0), |p| p.run.attempt)?;
    let of_n = n.run.attempt?;
    Some((of_p.into(), of_n.into()))
}

fn weight(terms: &Terms<'_>, fault: &Fault) -> Time {
    let (from, to) = terms.interval(fault);
    let by_length = 1 + (to - from) / terms.lock_ttl_or_1();
    match &*fault.fault {
        "killed" | "clock_stepped" => 1,
        "suspended" | "store_unavailable" | "store_lost_writes" | "store_sessions_ended" => {
            by_length
        }
        "network_cut" if fault.peer == "store" => by_length,
        _ => 0,
    }
}
