//! The rules for attempts: `attempt_without_run` and `attempt_not_counted`.

use std::cmp::{max, min};

use super::Findings;
use super::read::{Fault, Run, Time};
use super::runs::pairs;
use super::terms::{Terms, between, touch};

pub(super) fn attempt_without_run(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let expected = p.map_or(0, |p| attempt(p.run)) + 1;
            if attempt(n.run) <= expected {
                continue;
            }
            let first_sent = key.sent.iter().min().copied().unwrap_or(0);
            let from = p.map_or(min(first_sent, n.run.begin), |p| p.run.begin);
            let time = (from, n.run.begin);
            let faults = terms.history.faults.iter();
            let faults = faults.filter(|fault| touch(terms.interval(fault), time));
            let weights: Time = faults.map(|fault| weight(terms, fault)).sum();
            let length = n.run.begin - from;
            let waits = terms.history.max_hold.map_or(0, |max_hold| length / max(max_hold, 1));
            if attempt(n.run) > expected + weights + waits {
                findings.violated("attempt_without_run", name);
            }
        }
    }
}

pub(super) fn attempt_not_counted(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let Some(p) = p else { continue };
            let killed = terms.killed(p.run).is_some_and(|killed| killed <= n.run.begin);
            if p.run.end.is_none()
                && killed
                && attempt(n.run) <= attempt(p.run)
                && !between(&key.reopened, p, n)
                && !terms.writes_lost(key, p, n)
                && !terms.evicted(key, p, n)
                && !terms.lock_may_have_expired(p, n)
            {
                findings.violated("attempt_not_counted", name);
            }
        }
    }
}

fn attempt(run: &Run) -> Time {
    run.attempt.unwrap_or(1).into()
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
