//! Repeated commands, and the replies to commands that change nothing.

use campanile_core::{Entry, Operation, Reply, State, reply, step as run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::Step;
use crate::draft::{DAY, HOUR, time};

pub(super) fn immediate_repeat_gets_same_reply_and_changes_nothing(step: &Step) -> TestCaseResult {
    let again = run(step.after.clone(), &step.operation, time(step.now));
    prop_assert_eq!(again, (step.after.clone(), step.reply.clone()));
    Ok(())
}

/// Also holds for a repeat that arrives later, or after the clock has jumped back. Only a reply
/// that reports a wait may change, and only the end of a lock may move.
pub(super) fn later_repeat_gets_same_reply_and_counts_nothing(step: &Step) -> TestCaseResult {
    if matches!(step.reply, Reply::Locked { .. } | Reply::BackingOff { .. } | Reply::Corrupt) {
        return Ok(());
    }
    let earlier = step.now.saturating_sub(2 * DAY);
    for now in [step.now.saturating_add(1), step.now.saturating_add(9 * DAY), earlier] {
        let (after, reply) = run(step.after.clone(), &step.operation, time(now));
        prop_assert_eq!(&reply, &step.reply);
        let moves =
            matches!(step.reply, Reply::Acquired { .. } | Reply::Exhausted { .. } | Reply::Renewed);
        if moves {
            prop_assert_eq!(without_end(after), without_end(step.after.clone()));
        } else {
            prop_assert_eq!(&after, &step.after);
        }
    }
    Ok(())
}

/// The stored bytes without `at`.
fn without_end(entry: Option<Entry>) -> Option<(Vec<u8>, Vec<u8>)> {
    entry.map(|entry| {
        let bytes = entry.to_bytes();
        (bytes[..36].to_vec(), bytes[44..].to_vec())
    })
}

pub(super) fn reply_is_derived_from_resulting_entry(step: &Step) -> TestCaseResult {
    let read = reply(step.after.as_ref(), &step.operation, time(step.now));
    prop_assert_eq!(&read, &step.reply);
    Ok(())
}

/// A reply that reports a wait may have clamped an end too far ahead, and changes nothing else.
pub(super) fn refusing_reply_changes_nothing(step: &Step) -> TestCaseResult {
    match step.reply {
        Reply::Duplicate { .. }
        | Reply::AlreadyGivenUp { .. }
        | Reply::Mismatch
        | Reply::Settled(_)
        | Reply::Lost
        | Reply::Corrupt => prop_assert!(step.is_unchanged()),
        Reply::Locked { remaining } | Reply::BackingOff { remaining, .. } => {
            prop_assert_eq!(without_end(step.after.clone()), without_end(step.before.clone()));
            let is_clamped = remaining.as_micros() == u128::from(HOUR)
                || remaining.as_micros() == u128::from(DAY);
            prop_assert!(step.is_unchanged() || is_clamped);
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn settled_reply_reports_state_of_ended_grant(step: &Step) -> TestCaseResult {
    if let Reply::Settled(state) = step.reply {
        prop_assert_eq!(step.state_after(), Some(state));
        let is_redrive = matches!(step.operation, Operation::Redrive { .. });
        prop_assert!(is_redrive || state != State::Processing);
    }
    Ok(())
}
