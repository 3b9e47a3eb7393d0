//! Properties of every single step, for any entry and any operation.
//!
//! Each property is a function of one [`Step`] and becomes two tests: one on arbitrary entries and
//! operations, and one on all steps of simulated clients.

mod attempts;
mod grants;
mod repeats;
mod settling;

use campanile_core::{Entry, Grant, Operation, Reply, State, step};

use crate::arbitrary;
use crate::check::check;
use crate::draft::time;
use crate::simulation::{Faults, histories};

/// One operation on an entry, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The time of the store's clock, in microseconds since 1970.
    pub(crate) now: u64,
    pub(crate) before: Option<Entry>,
    pub(crate) operation: Operation,
    pub(crate) after: Option<Entry>,
    pub(crate) reply: Reply,
}

impl Step {
    pub(crate) fn apply(before: Option<Entry>, operation: Operation, now: u64) -> Self {
        let (after, reply) = step(before.clone(), &operation, time(now));
        Self { now, before, operation, after, reply }
    }

    pub(crate) fn is_unchanged(&self) -> bool {
        self.before == self.after
    }

    /// The entry after the step, if the step gave it a new grant.
    pub(crate) fn new_grant(&self) -> Option<&Entry> {
        let after = self.after.as_ref()?;
        let is_new = self.before.as_ref().is_none_or(|before| grant_of(before) != grant_of(after));
        (matches!(self.operation, Operation::Acquire { .. }) && is_new).then_some(after)
    }

    /// The grant that the operation names, if any.
    fn named_grant(&self) -> Option<Grant> {
        match self.operation {
            Operation::Renew { grant, .. }
            | Operation::Complete { grant, .. }
            | Operation::Fail { grant, .. }
            | Operation::Release { grant, .. }
            | Operation::RecordStep { grant, .. }
            | Operation::GiveUp { grant, .. } => Some(grant),
            _ => None,
        }
    }

    fn state_before(&self) -> Option<State> {
        self.before.as_ref().map(Entry::state)
    }

    fn state_after(&self) -> Option<State> {
        self.after.as_ref().map(Entry::state)
    }

    /// A reopen that changes nothing does not count.
    pub(crate) fn reopens(&self) -> bool {
        self.reply == Reply::Reopened && !self.is_unchanged()
    }
}

pub(crate) fn grant_of(entry: &Entry) -> Option<Grant> {
    entry.owner().map(|owner| Grant { token: entry.token(), owner })
}

macro_rules! properties {
    ($($module:ident: $($property:ident),* $(,)?;)*) => {
        mod arbitrary_steps {
            use super::*;
            $($(
                #[test]
                fn $property() {
                    check(2000, &arbitrary::steps(), |step| $module::$property(&step));
                }
            )*)*
        }

        mod simulated_steps {
            use super::*;
            $($(
                #[test]
                fn $property() {
                    check(40, &histories(Faults::ALL), |history| {
                        history.steps().try_for_each(|(_, step)| $module::$property(step))
                    });
                }
            )*)*
        }
    };
}

properties! {
    grants:
        stale_grant_changes_nothing,
        expired_lock_belongs_to_its_grant_until_taken_over,
        token_increases_with_grants_only,
        live_lock_is_not_granted_to_others,
        acquire_during_backoff_is_not_granted,
        free_key_is_granted_for_requested_ttl,
        owner_never_shortens_its_lock,
        reported_wait_is_at_most_max_lock_or_backoff;
    attempts:
        attempt_is_counted_when_lock_is_acquired,
        give_up_lock_is_granted_iff_no_attempt_is_left,
        permanent_failure_stays_until_completed_or_reopened,
        give_up_and_release_flags_end_with_their_state;
    repeats:
        immediate_repeat_gets_same_reply_and_changes_nothing,
        later_repeat_gets_same_reply_and_counts_nothing,
        reply_is_derived_from_resulting_entry,
        refusing_reply_changes_nothing,
        settled_reply_reports_state_of_ended_grant;
    settling:
        no_operation_deletes_an_entry,
        resulting_entry_is_readable,
        only_reject_makes_failed,
        only_complete_makes_completed,
        only_redrive_reopens_settled_entry,
        different_payload_is_mismatch_and_changes_nothing,
        fingerprint_is_kept_until_grant_replaces_it,
        last_error_is_kept_until_replaced,
        duplicate_gets_reply_of_completion,
        details_change_with_grants_and_completions,
        steps_are_kept_until_completed,
        acquired_has_the_steps;
}
