//! The order of the checks: the fingerprint, then the ownership, then the rest.

use campanile_core::{Reply, State};

use super::{Acquire, TTL, assert_step};
use crate::draft::{Draft, NOW, OTHER, TOKEN, fingerprint, token};

fn other_payload() -> Acquire {
    Acquire { fingerprint: Some(fingerprint(2)), ..Acquire::PLAIN }
}

fn all_states() -> [Draft; 4] {
    [State::Processing, State::Retrying, State::Completed, State::Failed]
        .map(|state| Draft { fingerprint: 1, ..Draft::new(state, NOW - 1) })
}

#[test]
fn mismatch_precedes_ownership_check() {
    for draft in all_states() {
        for before in [draft.clone(), Draft { owner: OTHER, ..draft }] {
            let operation = other_payload().operation();
            assert_step(Some(before.clone()), &operation, Some(before), Reply::Mismatch);
        }
    }
}

#[test]
fn untried_key_may_change_payload() {
    let untried =
        Draft { owner: OTHER, attempt: 0, fingerprint: 1, ..Draft::new(State::Retrying, NOW - 1) };
    let after = Draft {
        state: State::Processing,
        attempt: 1,
        token: NOW,
        owner: crate::draft::ME,
        fingerprint: 2,
        at: NOW + TTL,
        ..untried.clone()
    };
    let reply = Reply::Acquired { token: token(NOW), attempt: 1, steps: None };
    assert_step(Some(untried.clone()), &other_payload().operation(), Some(after), reply);

    // An interrupted key counts as tried, although its attempt was uncounted.
    let interrupted = Draft { interrupts: 1, ..untried };
    let operation = other_payload().operation();
    assert_step(Some(interrupted.clone()), &operation, Some(interrupted), Reply::Mismatch);
}

#[test]
fn fingerprints_are_compared_only_if_both_exist() {
    let entry = Draft::new(State::Completed, NOW - 1);
    let reply = Reply::Duplicate {
        reply: None,
        attempt: 1,
        completed_at: crate::draft::time(NOW - 1),
        details: None,
    };
    let operation = other_payload().operation();
    assert_step(Some(entry.clone()), &operation, Some(entry.clone()), reply.clone());
    let entry = Draft { fingerprint: 1, ..entry };
    let operation = Acquire::PLAIN.operation();
    assert_step(Some(entry.clone()), &operation, Some(entry), reply);
}

#[test]
fn reacquire_of_own_expired_lock_keeps_the_grant() {
    let own = Draft::new(State::Processing, NOW - 1);
    let after = Draft { at: NOW + TTL, ..own.clone() };
    let reply = Reply::Acquired { token: token(TOKEN), attempt: 1, steps: None };
    assert_step(Some(own), &Acquire::PLAIN.operation(), Some(after), reply);
}
