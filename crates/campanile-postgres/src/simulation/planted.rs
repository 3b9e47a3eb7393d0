//! Bugs that tests plant in the store, its server and the keeper, to verify that the simulation finds
//! them.

use std::cell::Cell;

use campanile_core::Answer;
use campanile_test::simulation::KeeperBug;

use crate::call::Call;
use crate::failure::Failure;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A connection with unanswered calls is lent again, as are the connections that were idle then.
    ConnectionKept,
    /// A new connection begins with an answer that the previous one has lost.
    StaleReply,
    /// Each command of a call gets the answer of the next one.
    AnswersRotated,
    /// The rows of a result are those of the keys in their order.
    RowsInOrder,
    /// A call without an answer in time was not sent.
    TimeoutNotSent,
    /// A call that is to be sent once more, and gets no connection, was not sent.
    SecondFailureNotSent,
    /// A call has had its usual outcome, although its connection broke, perhaps before the commit.
    LostCommitDone,
    /// A call that has waited too long for a locked row has had its usual outcome.
    LockTimeoutDone,
    /// A lock for a dead letter is read as one for an attempt.
    GiveUpFlagNotRead,
    /// A completion without an entry creates none.
    AdoptOmitted,
    /// A function changes whatever lock the key has.
    GrantNotCompared,
    /// One of the keeper.
    Keeper(KeeperBug),
}

impl Bug {
    pub(super) const ALL: [Self; 17] = [
        Self::ConnectionKept,
        Self::StaleReply,
        Self::AnswersRotated,
        Self::RowsInOrder,
        Self::TimeoutNotSent,
        Self::SecondFailureNotSent,
        Self::LostCommitDone,
        Self::LockTimeoutDone,
        Self::GiveUpFlagNotRead,
        Self::AdoptOmitted,
        Self::GrantNotCompared,
        Self::Keeper(KeeperBug::RepeatedWithFreshNonce),
        Self::Keeper(KeeperBug::CancelNotSent),
        Self::Keeper(KeeperBug::RenewalNotSent),
        Self::Keeper(KeeperBug::RenewalResultIgnored),
        Self::Keeper(KeeperBug::CompletionNotRepeated),
        Self::Keeper(KeeperBug::StepNotRepeated),
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// The bug of the keeper that is planted, if any.
pub(super) fn keeper_bug() -> Option<KeeperBug> {
    match PLANTED.get() {
        Some(Bug::Keeper(bug)) => Some(bug),
        _ => None,
    }
}

pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// The result of a call as the store takes it with a bug.
pub(crate) fn misread(
    call: &Call<'_>,
    mut result: Result<Vec<Answer>, Failure>,
) -> Result<Vec<Answer>, Failure> {
    match (PLANTED.get(), &mut result) {
        (Some(Bug::AnswersRotated), Ok(answers)) => answers.rotate_left(1),
        (Some(Bug::LostCommitDone), Err(failure)) if failure.is_transient() => {
            return Ok(call.usual_answers());
        }
        (Some(Bug::LockTimeoutDone), Err(failure)) if failure.is_lock_timeout() => {
            return Ok(call.usual_answers());
        }
        _ => {}
    }
    result
}
