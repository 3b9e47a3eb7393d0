//! How a grant or an entry ends, and what the entry keeps.

use campanile_core::{Entry, Operation, Reply, State};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::Step;

pub(super) fn no_operation_deletes_an_entry(step: &Step) -> TestCaseResult {
    if let Some(before) = &step.before {
        let created = step.after.as_ref().map(Entry::created);
        prop_assert_eq!(created, Some(before.created()));
    }
    Ok(())
}

pub(super) fn resulting_entry_is_readable(step: &Step) -> TestCaseResult {
    if let Some(after) = &step.after {
        prop_assert_eq!(Entry::from_bytes(&after.to_bytes()), Ok(after.clone()));
    }
    Ok(())
}

pub(super) fn only_reject_makes_failed(step: &Step) -> TestCaseResult {
    if became(step, State::Failed) {
        prop_assert_eq!(step.operation.name(), "give_up");
        prop_assert_eq!(&step.reply, &Reply::GivenUp);
    }
    Ok(())
}

pub(super) fn only_complete_makes_completed(step: &Step) -> TestCaseResult {
    if became(step, State::Completed) {
        prop_assert_eq!(step.operation.name(), "complete");
        prop_assert_eq!(&step.reply, &Reply::Completed);
    }
    Ok(())
}

fn became(step: &Step, state: State) -> bool {
    step.state_after() == Some(state) && step.state_before() != Some(state)
}

pub(super) fn only_redrive_reopens_settled_entry(step: &Step) -> TestCaseResult {
    let was_settled = matches!(step.state_before(), Some(State::Completed | State::Failed));
    if was_settled && !step.is_unchanged() {
        prop_assert_eq!(step.operation.name(), "redrive");
        prop_assert!(step.reopens());
    }
    if step.reopens() {
        let after = step.after.as_ref();
        prop_assert_eq!(step.state_after(), Some(State::Retrying));
        prop_assert_eq!(after.and_then(Entry::owner), None);
        prop_assert_eq!(after.and_then(Entry::reply), None);
    }
    Ok(())
}

/// Holds in every state, once the key has been tried. Nothing else is a mismatch.
pub(super) fn different_payload_is_mismatch_and_changes_nothing(step: &Step) -> TestCaseResult {
    let mismatches = match (&step.operation, &step.before) {
        (Operation::Acquire { fingerprint: Some(requested), .. }, Some(entry)) => {
            let was_tried = entry.state() != State::Retrying
                || entry.attempt() > 0
                || entry.interrupts() > 0
                || entry.steps().is_some();
            was_tried && entry.fingerprint().is_some_and(|stored| stored != *requested)
        }
        _ => false,
    };
    prop_assert_eq!(step.reply == Reply::Mismatch, mismatches);
    prop_assert!(!mismatches || step.is_unchanged());
    Ok(())
}

pub(super) fn fingerprint_is_kept_until_grant_replaces_it(step: &Step) -> TestCaseResult {
    let Some(after) = &step.after else {
        return Ok(());
    };
    let before = step.before.as_ref().and_then(Entry::fingerprint);
    let expected = match step.operation {
        Operation::Acquire { fingerprint, .. } if step.new_grant().is_some() => {
            fingerprint.or(before)
        }
        Operation::Complete { fingerprint, .. } if step.before.is_none() => fingerprint,
        _ if step.reopens() => None,
        _ => before,
    };
    prop_assert_eq!(after.fingerprint(), expected);
    Ok(())
}

pub(super) fn last_error_is_kept_until_replaced(step: &Step) -> TestCaseResult {
    let Some(after) = &step.after else {
        return Ok(());
    };
    let before = step.before.as_ref().and_then(Entry::error);
    let expected = match &step.operation {
        _ if step.is_unchanged() => before,
        Operation::Fail { error: text, .. } | Operation::GiveUp { reason: text, .. }
            if !text.is_empty() =>
        {
            Some(Entry::kept_error(text).into())
        }
        Operation::Complete { .. } => None,
        _ => before,
    };
    prop_assert_eq!(after.error(), expected);
    Ok(())
}

pub(super) fn duplicate_gets_reply_of_completion(step: &Step) -> TestCaseResult {
    if let (Operation::Complete { reply, .. }, false) = (&step.operation, step.is_unchanged()) {
        prop_assert_eq!(step.after.as_ref().and_then(Entry::reply), reply.as_ref());
    }
    if let (Reply::Duplicate { reply, .. }, Some(entry)) = (&step.reply, &step.before) {
        prop_assert_eq!(entry.state(), State::Completed);
        prop_assert_eq!(reply.as_ref(), entry.reply());
    }
    Ok(())
}

pub(super) fn details_change_with_grants_and_completions(step: &Step) -> TestCaseResult {
    let Some(after) = &step.after else {
        return Ok(());
    };
    let before = step.before.as_ref();
    let expected = match &step.operation {
        _ if step.is_unchanged() => before.and_then(Entry::details),
        Operation::Complete { details, .. } => details.as_ref(),
        Operation::Acquire { details: Some(details), .. }
            if step.new_grant().is_some() && before.is_none_or(has_known_tail) =>
        {
            Some(details)
        }
        _ => before.and_then(Entry::details),
    };
    prop_assert_eq!(after.details(), expected);
    Ok(())
}

/// A tail of a kind that a later version may write is kept as it is.
fn has_known_tail(entry: &Entry) -> bool {
    let bytes = entry.to_bytes();
    // The kind of the tail behind the steps.
    let steps = entry.steps().map(|steps| bytes[48 + steps.as_bytes().len()]);
    steps.unwrap_or(bytes[6]) < 3 || entry.details().is_some()
}

pub(super) fn steps_are_kept_until_completed(step: &Step) -> TestCaseResult {
    let (before, after) = (step.before.as_ref(), step.after.as_ref());
    let before = before.and_then(Entry::steps);
    let after = after.and_then(Entry::steps);
    match &step.operation {
        _ if step.is_unchanged() => {}
        Operation::Complete { .. } => prop_assert_eq!(after, None),
        Operation::RecordStep { name, result, .. } => {
            prop_assert_eq!(&step.reply, &Reply::StepRecorded);
            prop_assert_eq!(before.and_then(|steps| steps.get(name)), None);
            let after = after.expect("recorded");
            prop_assert_eq!(after.get(name), Some(result.clone()));
            let earlier = before.map_or(&[][..], |steps| steps.as_bytes());
            prop_assert!(after.as_bytes().starts_with(earlier));
        }
        _ => prop_assert_eq!(after, before),
    }
    if step.reply == Reply::StepTooLarge {
        prop_assert!(step.is_unchanged());
    }
    Ok(())
}

pub(super) fn acquired_has_the_steps(step: &Step) -> TestCaseResult {
    if let (Reply::Acquired { steps, .. }, Some(after)) = (&step.reply, &step.after) {
        prop_assert_eq!(steps.as_ref(), after.steps());
    }
    Ok(())
}
