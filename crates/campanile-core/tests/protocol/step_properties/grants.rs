//! Whose the lock is.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Operation, Reply, State};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::{Step, grant_of};
use crate::draft::time;

/// The rule of compare-and-set: an operation that names another grant than the entry's last does
/// nothing, and says so.
pub(super) fn a_stale_grant_changes_nothing(step: &Step) -> TestCaseResult {
    let last = step.before.as_ref();
    let is_stale = match step.operation {
        Operation::Acquire { .. } => return Ok(()),
        Operation::Cancel { owner } => last.and_then(|entry| entry.owner()) != Some(owner),
        Operation::Redrive { token, .. } => last.map(|entry| entry.token()) != Some(token),
        _ => last.and_then(grant_of) != step.named(),
    };
    if !is_stale {
        return Ok(());
    }
    match (last, &step.operation) {
        // Nothing was granted, so nothing is left to undo.
        (None, Operation::Cancel { .. }) => prop_assert_eq!(&step.reply, &Reply::Released),
        (None, Operation::Complete { grant, .. }) => {
            prop_assert_eq!(&step.reply, &Reply::Completed);
            prop_assert_eq!(step.after.as_ref().and_then(grant_of), Some(*grant));
            return Ok(());
        }
        _ => prop_assert_eq!(&step.reply, &Reply::Lost),
    }
    prop_assert!(step.is_idle());
    Ok(())
}

pub(super) fn an_expired_lock_that_nobody_took_still_belongs_to_its_grant(
    step: &Step,
) -> TestCaseResult {
    let is_mine = step.before.as_ref().and_then(grant_of) == step.named() && step.named().is_some();
    if is_mine && step.state_before() == Some(State::Processing) {
        let (state, reply) = match step.operation {
            Operation::Renew { .. } => (State::Processing, Reply::Renewed),
            Operation::Complete { .. } => (State::Completed, Reply::Completed),
            Operation::Fail { .. } => (State::Retrying, Reply::Retrying),
            Operation::Release { .. } => (State::Retrying, Reply::Released),
            _ => (State::Failed, Reply::Rejected),
        };
        prop_assert_eq!(&step.reply, &reply);
        prop_assert_eq!(step.state_after(), Some(state));
    }
    Ok(())
}

/// The token is the grant's, whatever becomes of it.
pub(super) fn the_token_rises_with_each_grant_and_with_nothing_else(step: &Step) -> TestCaseResult {
    let token = |entry: &campanile_core::Entry| entry.token();
    let previous = step.before.as_ref().map(token);
    match (step.grant(), &step.operation) {
        (Some(entry), Operation::Acquire { owner, floor, .. }) => {
            prop_assert!(previous.is_none_or(|previous| entry.token() > previous));
            prop_assert!(entry.token() > *floor);
            prop_assert!(entry.token().get() >= step.now);
            prop_assert_eq!(entry.owner(), Some(*owner));
        }
        (_, Operation::Complete { .. }) if previous.is_none() => {}
        _ => prop_assert_eq!(step.after.as_ref().map(token), previous),
    }
    Ok(())
}

pub(super) fn a_live_lock_is_granted_to_nobody_else(step: &Step) -> TestCaseResult {
    let Some((remaining, at)) = waits(step, State::Processing) else {
        return Ok(());
    };
    if step.reply != Reply::Mismatch {
        let remaining = remaining.min(MAX_LOCK_TTL);
        prop_assert_eq!(&step.reply, &Reply::Locked { remaining });
        prop_assert_eq!(at, Some(time(step.now) + remaining));
    }
    prop_assert!(step.grant().is_none());
    Ok(())
}

pub(super) fn nobody_is_granted_before_the_back_off_is_over(step: &Step) -> TestCaseResult {
    let Some((remaining, at)) = waits(step, State::Retrying) else {
        return Ok(());
    };
    if step.reply != Reply::Mismatch {
        let remaining = remaining.min(MAX_BACKOFF);
        let attempt = step.before.as_ref().map_or(0, |entry| entry.attempt());
        prop_assert_eq!(&step.reply, &Reply::BackingOff { remaining, attempt });
        prop_assert_eq!(at, Some(time(step.now) + remaining));
    }
    prop_assert!(step.grant().is_none());
    Ok(())
}

/// How long an acquire of another owner has to wait, and until when it then has.
fn waits(step: &Step, state: State) -> Option<(Duration, Option<SystemTime>)> {
    let Operation::Acquire { owner, .. } = step.operation else {
        return None;
    };
    let entry = step.before.as_ref()?;
    let remaining = entry.at().duration_since(time(step.now)).unwrap_or_default();
    let must_wait = entry.state() == state && entry.owner() != Some(owner) && !remaining.is_zero();
    must_wait.then(|| (remaining, step.after.as_ref().map(|entry| entry.at())))
}

pub(super) fn what_is_free_is_granted_for_as_long_as_was_asked(step: &Step) -> TestCaseResult {
    let Operation::Acquire { owner, ttl, floor, .. } = step.operation else {
        return Ok(());
    };
    let is_free = step.before.as_ref().is_none_or(|entry| {
        matches!(entry.state(), State::Processing | State::Retrying)
            && entry.owner() != Some(owner)
            && entry.at() <= time(step.now)
    });
    let previous = step.before.as_ref().map_or(0, |entry| entry.token().get());
    let has_token = previous.max(floor.get()) + 1 < 1 << 53 && step.now < 1 << 53;
    if !is_free || step.reply == Reply::Mismatch {
        return Ok(());
    }
    if !has_token {
        prop_assert_eq!(&step.reply, &Reply::Corrupt);
        prop_assert!(step.is_idle());
        return Ok(());
    }
    let entry = step.grant();
    prop_assert!(entry.is_some_and(|entry| entry.state() == State::Processing));
    let whole = Duration::from_micros(ttl.min(MAX_LOCK_TTL).as_micros() as u64);
    prop_assert_eq!(entry.map(|entry| entry.at()), Some(time(step.now) + whole));
    let granted = matches!(step.reply, Reply::Acquired { .. } | Reply::Exhausted { .. });
    prop_assert!(granted, "{:?}", step.reply);
    Ok(())
}

pub(super) fn an_owner_never_shortens_its_lock(step: &Step) -> TestCaseResult {
    let ttl = match (&step.operation, &step.reply) {
        (Operation::Renew { ttl, .. }, Reply::Renewed) => *ttl,
        (Operation::Acquire { ttl, .. }, Reply::Acquired { .. } | Reply::Exhausted { .. }) => *ttl,
        _ => return Ok(()),
    };
    let whole = Duration::from_micros(ttl.min(MAX_LOCK_TTL).as_micros() as u64);
    let kept = step.before.as_ref().filter(|_| step.grant().is_none()).map(|entry| entry.at());
    let expected = kept.unwrap_or(SystemTime::UNIX_EPOCH).max(time(step.now) + whole);
    prop_assert_eq!(step.after.as_ref().map(|entry| entry.at()), Some(expected));
    Ok(())
}

/// Whatever the clock did since: an end that is further away is pulled in.
pub(super) fn nobody_waits_longer_than_the_longest_lock_or_back_off(step: &Step) -> TestCaseResult {
    match step.reply {
        Reply::Locked { remaining } => {
            prop_assert!(!remaining.is_zero() && remaining <= MAX_LOCK_TTL);
        }
        Reply::BackingOff { remaining, .. } => {
            prop_assert!(!remaining.is_zero() && remaining <= MAX_BACKOFF);
        }
        _ => {}
    }
    Ok(())
}
