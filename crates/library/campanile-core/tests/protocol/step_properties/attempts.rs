//! Counters and flags.

use campanile_core::limits::MAX_INTERRUPTS;
use campanile_core::{Operation, Reply, State};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::Step;

/// The attempt is uncounted when its owner gives up the lock, if the handler did not run or
/// `MAX_INTERRUPTS` is not reached. An operator's redrive resets it, and nothing else changes it.
pub(super) fn attempt_is_counted_when_lock_is_acquired(step: &Step) -> TestCaseResult {
    let Some(after) = &step.after else {
        return Ok(());
    };
    let (attempt, interrupts) = match (&step.before, &step.operation) {
        (None, Operation::Complete { attempt, .. }) => (*attempt, 0),
        (None, _) => (1, 0),
        (Some(_), _) if step.reopens() => (0, 0),
        (Some(before), operation) => {
            let (attempt, interrupts) = (before.attempt(), before.interrupts());
            let ran = matches!(operation, Operation::Release { ran: true, .. });
            let gives_up = step.reply == Reply::Released
                && before.state() == State::Processing
                && !before.is_give_up();
            if step.new_grant().is_some() && !after.is_give_up() {
                (attempt.saturating_add(1), interrupts)
            } else if gives_up && !ran {
                (attempt.saturating_sub(1), interrupts)
            } else if gives_up && interrupts < MAX_INTERRUPTS {
                (attempt.saturating_sub(1), interrupts + 1)
            } else {
                (attempt, interrupts)
            }
        }
    };
    prop_assert_eq!((after.attempt(), after.interrupts()), (attempt, interrupts));
    Ok(())
}

pub(super) fn give_up_lock_is_granted_iff_no_attempt_is_left(step: &Step) -> TestCaseResult {
    let (Some(entry), &Operation::Acquire { max_attempts, .. }) =
        (step.new_grant(), &step.operation)
    else {
        return Ok(());
    };
    let (attempt, give_ups, permanent_failure) =
        step.before.as_ref().map_or((0, 0, false), |entry| {
            (entry.attempt(), entry.give_ups(), entry.has_permanent_failure())
        });
    let is_exhausted = permanent_failure || (max_attempts > 0 && attempt >= max_attempts);
    prop_assert_eq!(entry.is_give_up(), is_exhausted);
    let counted = if is_exhausted { give_ups.saturating_add(1) } else { give_ups };
    prop_assert_eq!(entry.give_ups(), counted);
    let token = entry.token();
    let expected = if is_exhausted {
        let last_error = entry.error().map(Into::into);
        Reply::Exhausted { token, attempt, give_ups: counted, last_error }
    } else {
        Reply::Acquired { token, attempt: entry.attempt(), steps: entry.steps().cloned() }
    };
    prop_assert_eq!(&step.reply, &expected);
    Ok(())
}

/// Only a failure with `last` dooms an entry.
pub(super) fn permanent_failure_stays_until_completed_or_reopened(step: &Step) -> TestCaseResult {
    let had_permanent_failure =
        step.before.as_ref().is_some_and(|entry| entry.has_permanent_failure());
    let has_permanent_failure =
        step.after.as_ref().is_some_and(|entry| entry.has_permanent_failure());
    let expected = match (&step.operation, &step.reply) {
        _ if step.is_unchanged() => had_permanent_failure,
        (Operation::Fail { last, .. }, _) => had_permanent_failure || *last,
        (_, Reply::Completed | Reply::Reopened) => false,
        _ => had_permanent_failure,
    };
    prop_assert_eq!(has_permanent_failure, expected);
    Ok(())
}

/// The `giving_up` flag is cleared when the grant ends, and the `released` flag is set only if the grant
/// ended by a release.
pub(super) fn give_up_and_release_flags_end_with_their_state(step: &Step) -> TestCaseResult {
    let Some(after) = &step.after else {
        return Ok(());
    };
    let has_ended = step.state_before() != step.state_after() && step.new_grant().is_none();
    if has_ended {
        prop_assert!(!after.is_give_up());
        prop_assert_eq!(after.is_released(), step.reply == Reply::Released);
    }
    if step.new_grant().is_some() {
        prop_assert!(!after.is_released());
    }
    Ok(())
}
