//! Ownership of the lock.

use std::time::{Duration, SystemTime};

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL};
use campanile_core::{Operation, Reply, State};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::{Step, grant_of};
use crate::draft::time;

/// The compare-and-set rule: an operation that names a grant other than the entry's last one
/// changes nothing and reports `Lost`.
pub(super) fn stale_grant_changes_nothing(step: &Step) -> TestCaseResult {
    let last = step.before.as_ref();
    let is_stale = match step.operation {
        Operation::Acquire { .. } => return Ok(()),
        Operation::Cancel { owner } => last.and_then(|entry| entry.owner()) != Some(owner),
        Operation::Redrive { token, .. } => last.map(|entry| entry.token()) != Some(token),
        _ => last.and_then(grant_of) != step.named_grant(),
    };
    if !is_stale {
        return Ok(());
    }
    match (last, &step.operation) {
        // Nothing was granted, so there is nothing to undo.
        (None, Operation::Cancel { .. }) => prop_assert_eq!(&step.reply, &Reply::Released),
        (None, Operation::Complete { grant, .. }) => {
            prop_assert_eq!(&step.reply, &Reply::Completed);
            prop_assert_eq!(step.after.as_ref().and_then(grant_of), Some(*grant));
            return Ok(());
        }
        _ => prop_assert_eq!(&step.reply, &Reply::Lost),
    }
    prop_assert!(step.is_unchanged());
    Ok(())
}

pub(super) fn expired_lock_belongs_to_its_grant_until_taken_over(step: &Step) -> TestCaseResult {
    let is_mine = step.before.as_ref().and_then(grant_of) == step.named_grant()
        && step.named_grant().is_some();
    if is_mine && step.state_before() == Some(State::Processing) {
        let (state, reply) = match step.operation {
            Operation::Renew { .. } => (State::Processing, Reply::Renewed),
            Operation::Complete { .. } => (State::Completed, Reply::Completed),
            Operation::Fail { .. } => (State::Retrying, Reply::Retrying),
            Operation::Release { .. } => (State::Retrying, Reply::Released),
            Operation::RecordStep { .. } if step.reply == Reply::StepTooLarge => return Ok(()),
            Operation::RecordStep { .. } => (State::Processing, Reply::StepRecorded),
            _ => (State::Failed, Reply::GivenUp),
        };
        prop_assert_eq!(&step.reply, &reply);
        prop_assert_eq!(step.state_after(), Some(state));
    }
    Ok(())
}

/// The token belongs to its grant, however the grant ends.
pub(super) fn token_increases_with_grants_only(step: &Step) -> TestCaseResult {
    let token = |entry: &campanile_core::Entry| entry.token();
    let previous = step.before.as_ref().map(token);
    match (step.new_grant(), &step.operation) {
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

pub(super) fn live_lock_is_not_granted_to_others(step: &Step) -> TestCaseResult {
    let Some((remaining, at)) = required_wait(step, State::Processing) else {
        return Ok(());
    };
    if step.reply != Reply::Mismatch {
        let remaining = remaining.min(MAX_LOCK_TTL);
        prop_assert_eq!(&step.reply, &Reply::Locked { remaining });
        prop_assert_eq!(at, Some(time(step.now) + remaining));
    }
    prop_assert!(step.new_grant().is_none());
    Ok(())
}

pub(super) fn acquire_during_backoff_is_not_granted(step: &Step) -> TestCaseResult {
    let Some((remaining, at)) = required_wait(step, State::Retrying) else {
        return Ok(());
    };
    if step.reply != Reply::Mismatch {
        let remaining = remaining.min(MAX_BACKOFF);
        let attempt = step.before.as_ref().map_or(0, |entry| entry.attempt());
        prop_assert_eq!(&step.reply, &Reply::BackingOff { remaining, attempt });
        prop_assert_eq!(at, Some(time(step.now) + remaining));
    }
    prop_assert!(step.new_grant().is_none());
    Ok(())
}

/// How long an acquire by another owner has to wait, and the resulting end of that wait.
fn required_wait(step: &Step, state: State) -> Option<(Duration, Option<SystemTime>)> {
    let Operation::Acquire { owner, .. } = step.operation else {
        return None;
    };
    let entry = step.before.as_ref()?;
    let remaining = entry.at().duration_since(time(step.now)).unwrap_or_default();
    let must_wait = entry.state() == state && entry.owner() != Some(owner) && !remaining.is_zero();
    must_wait.then(|| (remaining, step.after.as_ref().map(|entry| entry.at())))
}

pub(super) fn free_key_is_granted_for_requested_ttl(step: &Step) -> TestCaseResult {
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
        prop_assert!(step.is_unchanged());
        return Ok(());
    }
    let entry = step.new_grant();
    prop_assert!(entry.is_some_and(|entry| entry.state() == State::Processing));
    let granted_ttl = Duration::from_micros(ttl.min(MAX_LOCK_TTL).as_micros() as u64);
    prop_assert_eq!(entry.map(|entry| entry.at()), Some(time(step.now) + granted_ttl));
    let granted = matches!(step.reply, Reply::Acquired { .. } | Reply::Exhausted { .. });
    prop_assert!(granted, "{:?}", step.reply);
    Ok(())
}

pub(super) fn owner_never_shortens_its_lock(step: &Step) -> TestCaseResult {
    let ttl = match (&step.operation, &step.reply) {
        (Operation::Renew { ttl, .. }, Reply::Renewed) => *ttl,
        (Operation::Acquire { ttl, .. }, Reply::Acquired { .. } | Reply::Exhausted { .. }) => *ttl,
        _ => return Ok(()),
    };
    let granted_ttl = Duration::from_micros(ttl.min(MAX_LOCK_TTL).as_micros() as u64);
    let kept = step.before.as_ref().filter(|_| step.new_grant().is_none()).map(|entry| entry.at());
    let expected = kept.unwrap_or(SystemTime::UNIX_EPOCH).max(time(step.now) + granted_ttl);
    prop_assert_eq!(step.after.as_ref().map(|entry| entry.at()), Some(expected));
    Ok(())
}

/// Holds after any clock jump: an end too far ahead is clamped.
pub(super) fn reported_wait_is_at_most_max_lock_or_backoff(step: &Step) -> TestCaseResult {
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
