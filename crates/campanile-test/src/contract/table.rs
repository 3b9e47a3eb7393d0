//! The protocol's table, row by row: every operation in every situation.

use campanile_core::{Grant, Operation, Reply, State};
use campanile_idempotency::Store;

use super::Time;
use super::situations::Situation;
use super::witness::{Kept, LONG, Witness, acquire, acquire_as, complete, fail, redrive, reject};

/// A reply without its numbers, which are compared with `step` in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Acquired,
    Exhausted,
    Locked,
    BackingOff,
    Duplicate,
    Parked,
    Renewed,
    Completed,
    Retrying,
    Released,
    Rejected,
    Reopened,
    Settled(State),
    Lost,
    Else,
}

use Is::{
    Acquired, BackingOff, Completed, Duplicate, Exhausted, Locked, Lost, Parked, Rejected,
    Released, Renewed, Reopened, Retrying,
};

/// The `Settled` replies, named by the letter of the state.
const P: Is = Is::Settled(State::Processing);
const R: Is = Is::Settled(State::Retrying);
const C: Is = Is::Settled(State::Completed);
const F: Is = Is::Settled(State::Failed);

/// In the order of [`Situation::ALL`]: absent; PROCESSING live, expired, burial; RETRYING waiting,
/// due, released, doomed, exhausted, reopened; COMPLETED; FAILED.
type Column = [Is; Situation::ALL.len()];

macro_rules! columns {
    ($($promise:ident: |$mine:pat_param| $operation:expr,
        [$absent:expr; $($p:expr),+; $($r:expr),+; $c:expr; $f:expr];)*) => {$(
        pub(super) async fn $promise<S: Store, T: Time>(witness: &Witness<'_, S, T>) -> Kept {
            let column = [$absent, $($p,)+ $($r,)+ $c, $f];
            check(witness, |$mine| $operation, column).await
        }
    )*};
}

columns! {
    acquire_by_another_in_every_situation: |_| acquire(LONG),
        [Acquired; Locked, Acquired, Locked;
         BackingOff, Acquired, Acquired, Exhausted, Exhausted, Acquired; Duplicate; Parked];
    // A reopened entry has no owner.
    acquire_repeated_in_every_situation: |mine| acquire_as(mine.owner, LONG),
        [Acquired; Acquired, Acquired, Exhausted; R, R, R, R, R, Acquired; Duplicate; Parked];
    renew_in_every_situation: |mine| Operation::Renew { grant: mine, ttl: LONG },
        [Lost; Renewed, Renewed, Renewed; R, R, R, R, R, Lost; C; F];
    complete_in_every_situation: |mine| complete(mine),
        [Completed; Completed, Completed, Completed; R, R, R, R, R, Lost; Completed; F];
    fail_in_every_situation: |mine| fail(mine, LONG),
        [Lost; Retrying, Retrying, Retrying; Retrying, Retrying, R, Retrying, Retrying, Lost; C; F];
    release_of_what_ran_in_every_situation: |mine| Operation::Release { grant: mine, ran: true },
        [Lost; Released, Released, Released; R, R, Released, R, R, Lost; C; F];
    release_of_what_never_ran_in_every_situation: |mine| Operation::Release { grant: mine, ran: false },
        [Lost; Released, Released, Released; R, R, Released, R, R, Lost; C; F];
    cancel_in_every_situation: |mine| Operation::Cancel { owner: mine.owner },
        [Released; Released, Released, Released;
         Released, Released, Released, Released, Released, Lost; C; F];
    reject_in_every_situation: |mine| reject(mine),
        [Lost; Rejected, Rejected, Rejected; R, R, R, R, R, Lost; C; Rejected];
    redrive_in_every_situation: |mine| redrive(mine.token, false),
        [Lost; P, P, P; R, R, R, R, R, Reopened; C; Reopened];
    forced_redrive_in_every_situation: |mine| redrive(mine.token, true),
        [Lost; P, P, P; Reopened, Reopened, Reopened, Reopened, Reopened, Reopened;
         Reopened; Reopened];
}

async fn check<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
    operation: impl Fn(Grant) -> Operation,
    column: Column,
) -> Kept {
    for (situation, expected) in Situation::ALL.into_iter().zip(column) {
        let seen = async {
            let (key, mine) = witness.bring(situation).await?;
            let operation = operation(mine);
            let answer = witness.apply(&key, operation.clone()).await?;
            if is(&answer.reply) != expected {
                let reply = answer.reply;
                return Err(format!("{operation:?}: expected {expected:?}, got {reply:?}"));
            }
            // The same command again, as after a lost reply.
            witness.apply(&key, operation).await?;
            witness.reveal(&key, mine).await
        };
        seen.await.map_err(|seen| format!("{situation:?}: {seen}"))?;
    }
    Ok(())
}

fn is(reply: &Reply) -> Is {
    match reply {
        Reply::Acquired { .. } => Acquired,
        Reply::Exhausted { .. } => Exhausted,
        Reply::Locked { .. } => Locked,
        Reply::BackingOff { .. } => BackingOff,
        Reply::Duplicate { .. } => Duplicate,
        Reply::Parked { .. } => Parked,
        Reply::Renewed => Renewed,
        Reply::Completed => Completed,
        Reply::Retrying => Retrying,
        Reply::Released => Released,
        Reply::Rejected => Rejected,
        Reply::Reopened => Reopened,
        Reply::Settled(state) => Is::Settled(*state),
        Reply::Lost => Lost,
        _ => Is::Else,
    }
}
