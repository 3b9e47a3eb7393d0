//! An end further ahead than any client can have requested, because the store's clock jumped back.

use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Reply, State};

use super::{Acquire, TTL, assert_step};
use crate::draft::{DAY, Draft, HOUR, NOW, OTHER, TOKEN, fingerprint, my_grant, token};

fn locked_until(at: u64) -> Draft {
    Draft { owner: OTHER, ..Draft::new(State::Processing, at) }
}

fn waiting_until(at: u64) -> Draft {
    Draft { owner: OTHER, ..Draft::new(State::Retrying, at) }
}

#[test]
fn overlong_lock_is_clamped_by_another_owner() {
    let acquire = Acquire::PLAIN.operation();
    for at in [NOW + HOUR + 1, NOW + 400 * DAY, u64::MAX] {
        let reply = Reply::Locked { remaining: MAX_LOCK_TTL };
        let clamped = locked_until(NOW + HOUR);
        assert_step(Some(locked_until(at)), &acquire, Some(clamped), reply);
    }
}

#[test]
fn overlong_backoff_is_clamped_by_another_owner() {
    let acquire = Acquire::PLAIN.operation();
    for at in [NOW + DAY + 1, NOW + 400 * DAY, u64::MAX] {
        let reply = Reply::BackingOff { remaining: MAX_BACKOFF, attempt: 1 };
        let clamped = waiting_until(NOW + DAY);
        assert_step(Some(waiting_until(at)), &acquire, Some(clamped), reply);
    }
}

#[test]
fn legal_lock_and_backoff_are_not_clamped() {
    let acquire = Acquire::PLAIN.operation();
    let locked = locked_until(NOW + HOUR);
    let reply = Reply::Locked { remaining: MAX_LOCK_TTL };
    assert_step(Some(locked.clone()), &acquire, Some(locked), reply);
    let waiting = waiting_until(NOW + HOUR + 1);
    let reply = Reply::BackingOff { remaining: Duration::from_micros(HOUR + 1), attempt: 1 };
    assert_step(Some(waiting.clone()), &acquire, Some(waiting), reply);
}

#[test]
fn owner_does_not_clamp_its_own_lock() {
    let own = Draft::new(State::Processing, NOW + 2 * HOUR);
    let reply = Reply::Acquired { token: token(TOKEN), attempt: 1, steps: None };
    assert_step(Some(own.clone()), &Acquire::PLAIN.operation(), Some(own.clone()), reply);
    let ttl = Duration::from_micros(TTL);
    let renew = campanile_core::Operation::Renew { grant: my_grant(), ttl };
    assert_step(Some(own.clone()), &renew, Some(own), Reply::Renewed);
}

#[test]
fn mismatch_does_not_clamp() {
    let other_payload = Acquire { fingerprint: Some(fingerprint(2)), ..Acquire::PLAIN }.operation();
    let before = Draft { fingerprint: 1, ..locked_until(NOW + 2 * HOUR) };
    assert_step(Some(before.clone()), &other_payload, Some(before), Reply::Mismatch);
}

#[test]
fn settled_entry_is_not_clamped() {
    let acquire = Acquire::PLAIN.operation();
    let failed = Draft { owner: OTHER, ..Draft::new(State::Failed, NOW + 400 * DAY) };
    let reply = Reply::AlreadyGivenUp { attempt: 1, reason: None };
    assert_step(Some(failed.clone()), &acquire, Some(failed), reply);
}
