//! What must hold of any single step, whatever the entry and the operation.
//!
//! Each rule is a function over one [`Step`], named after its promise, and becomes two tests: on
//! entries and operations from nowhere, and on all steps of a world of clients.

mod attempts;
mod grants;
mod repeats;
mod settling;

use campanile_core::{Entry, Grant, Operation, Reply, State, step};

use crate::check::check;
use crate::draft::time;
use crate::wild;
use crate::world::{Faults, histories};

/// One operation on an entry, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// In microseconds since 1970.
    pub(crate) now: u64,
    pub(crate) before: Option<Entry>,
    pub(crate) operation: Operation,
    pub(crate) after: Option<Entry>,
    pub(crate) reply: Reply,
}

impl Step {
    pub(crate) fn take(before: Option<Entry>, operation: Operation, now: u64) -> Self {
        let (after, reply) = step(before.clone(), &operation, time(now));
        Self { now, before, operation, after, reply }
    }

    /// Whether the entry is as it was.
    pub(crate) fn is_idle(&self) -> bool {
        self.before == self.after
    }

    /// The entry before and after, if this step gave it a new grant.
    pub(crate) fn grant(&self) -> Option<&Entry> {
        let after = self.after.as_ref()?;
        let is_new = self.before.as_ref().is_none_or(|before| grant_of(before) != grant_of(after));
        (matches!(self.operation, Operation::Acquire { .. }) && is_new).then_some(after)
    }

    /// The grant that the operation names, if it names one.
    fn named(&self) -> Option<Grant> {
        match self.operation {
            Operation::Renew { grant, .. }
            | Operation::Complete { grant, .. }
            | Operation::Fail { grant, .. }
            | Operation::Release { grant, .. }
            | Operation::Reject { grant, .. } => Some(grant),
            _ => None,
        }
    }

    fn state_before(&self) -> Option<State> {
        self.before.as_ref().map(Entry::state)
    }

    fn state_after(&self) -> Option<State> {
        self.after.as_ref().map(Entry::state)
    }

    /// Whether an operator opened the entry again in this step.
    pub(crate) fn reopens(&self) -> bool {
        self.reply == Reply::Reopened && !self.is_idle()
    }
}

pub(crate) fn grant_of(entry: &Entry) -> Option<Grant> {
    entry.owner().map(|owner| Grant { token: entry.token(), owner })
}

macro_rules! rules {
    ($($module:ident: $($promise:ident),* $(,)?;)*) => {
        mod of_any_step {
            use super::*;
            $($(
                #[test]
                fn $promise() {
                    check(2000, &wild::steps(), |step| $module::$promise(&step));
                }
            )*)*
        }

        mod of_all_steps_of_a_world {
            use super::*;
            $($(
                #[test]
                fn $promise() {
                    check(40, &histories(Faults::ALL), |history| {
                        history.steps().try_for_each(|(_, step)| $module::$promise(step))
                    });
                }
            )*)*
        }
    };
}

rules! {
    grants:
        a_stale_grant_changes_nothing,
        an_expired_lock_that_nobody_took_still_belongs_to_its_grant,
        the_token_rises_with_each_grant_and_with_nothing_else,
        a_live_lock_is_granted_to_nobody_else,
        nobody_is_granted_before_the_back_off_is_over,
        what_is_free_is_granted_for_as_long_as_was_asked,
        an_owner_never_shortens_its_lock,
        nobody_waits_longer_than_the_longest_lock_or_back_off;
    attempts:
        an_attempt_is_counted_when_the_lock_is_acquired,
        a_burial_lock_is_granted_when_and_only_when_no_attempt_is_left,
        an_entry_stays_doomed_until_it_completes_or_is_reopened,
        flags_end_with_what_they_say;
    repeats:
        a_repeat_at_once_gives_the_same_answer_and_changes_nothing,
        a_repeat_later_gives_the_same_answer_and_counts_nothing,
        the_answer_is_read_from_the_entry_afterwards,
        an_answer_that_refuses_changes_nothing,
        settled_tells_how_the_grant_ended;
    settling:
        no_operation_deletes_an_entry,
        what_a_step_leaves_can_be_read_again,
        only_reject_makes_failed,
        only_complete_makes_completed,
        only_a_redrive_reopens_what_is_settled,
        another_payload_is_refused_and_told_nothing,
        the_fingerprint_stays_until_a_grant_brings_another,
        the_last_error_stays_until_there_is_another,
        a_duplicate_is_answered_with_the_reply_that_completed;
}
