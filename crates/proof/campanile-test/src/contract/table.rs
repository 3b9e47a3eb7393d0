//! The protocol's table, row by row: every operation in every situation.

use campanile_core::{Grant, Operation, Reply, State};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, ModelChecker, acquire, acquire_as, complete, fail, give_up,
    record_step, redrive,
};
use super::situations::Situation;

/// A reply without its numbers, which are compared with `step` in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReplyKind {
    Acquired,
    Exhausted,
    Locked,
    BackingOff,
    Duplicate,
    AlreadyGivenUp,
    Renewed,
    Completed,
    Retrying,
    Released,
    StepRecorded,
    GivenUp,
    Reopened,
    Settled(State),
    Lost,
    Other,
}

use ReplyKind::{
    Acquired, AlreadyGivenUp, BackingOff, Completed, Duplicate, Exhausted, GivenUp, Locked, Lost,
    Released, Renewed, Reopened, Retrying, StepRecorded,
};

/// The `Settled` replies, named by the letter of the state.
const P: ReplyKind = ReplyKind::Settled(State::Processing);
const R: ReplyKind = ReplyKind::Settled(State::Retrying);
const C: ReplyKind = ReplyKind::Settled(State::Completed);
const F: ReplyKind = ReplyKind::Settled(State::Failed);

/// In the order of [`Situation::ALL`]: absent; PROCESSING live, expired, giving up; RETRYING waiting,
/// due, released, permanently failed, exhausted, reopened; COMPLETED; FAILED.
type Column = [ReplyKind; Situation::ALL.len()];

macro_rules! columns {
    ($($promise:ident: |$mine:pat_param| $operation:expr,
        [$absent:expr; $($p:expr),+; $($r:expr),+; $c:expr; $f:expr];)*) => {$(
        pub(super) async fn $promise<S: Store, T: Time>(
            checker: &ModelChecker<'_, S, T>,
        ) -> CheckResult {
            let column = [$absent, $($p,)+ $($r,)+ $c, $f];
            check(checker, |$mine| $operation, column).await
        }
    )*};
}

columns! {
    acquire_by_another_in_every_situation: |_| acquire(LONG_DURATION),
        [Acquired; Locked, Acquired, Locked;
         BackingOff, Acquired, Acquired, Exhausted, Exhausted, Acquired; Duplicate; AlreadyGivenUp];
    // A reopened entry has no owner.
    acquire_repeated_in_every_situation: |mine| acquire_as(mine.owner, LONG_DURATION),
        [Acquired; Acquired, Acquired, Exhausted; R, R, R, R, R, Acquired; Duplicate; AlreadyGivenUp];
    renew_in_every_situation: |mine| Operation::Renew { grant: mine, ttl: LONG_DURATION },
        [Lost; Renewed, Renewed, Renewed; R, R, R, R, R, Lost; C; F];
    complete_in_every_situation: |mine| complete(mine),
        [Completed; Completed, Completed, Completed; R, R, R, R, R, Lost; Completed; F];
    fail_in_every_situation: |mine| fail(mine, LONG_DURATION),
        [Lost; Retrying, Retrying, Retrying; Retrying, Retrying, R, Retrying, Retrying, Lost; C; F];
    release_of_what_ran_in_every_situation: |mine| Operation::Release { grant: mine, ran: true },
        [Lost; Released, Released, Released; R, R, Released, R, R, Lost; C; F];
    release_of_what_never_ran_in_every_situation: |mine| Operation::Release { grant: mine, ran: false },
        [Lost; Released, Released, Released; R, R, Released, R, R, Lost; C; F];
    cancel_in_every_situation: |mine| Operation::Cancel { owner: mine.owner },
        [Released; Released, Released, Released;
         Released, Released, Released, Released, Released, Lost; C; F];
    record_step_in_every_situation: |mine| record_step(mine, "charge", b"ch-1"),
        [Lost; StepRecorded, StepRecorded, StepRecorded; R, R, R, R, R, Lost; C; F];
    reject_in_every_situation: |mine| give_up(mine),
        [Lost; GivenUp, GivenUp, GivenUp; R, R, R, R, R, Lost; C; GivenUp];
    redrive_in_every_situation: |mine| redrive(mine.token, false),
        [Lost; P, P, P; R, R, R, R, R, Reopened; C; Reopened];
    forced_redrive_in_every_situation: |mine| redrive(mine.token, true),
        [Lost; P, P, P; Reopened, Reopened, Reopened, Reopened, Reopened, Reopened;
         Reopened; Reopened];
}

async fn check<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
    operation: impl Fn(Grant) -> Operation,
    column: Column,
) -> CheckResult {
    for (situation, expected) in Situation::ALL.into_iter().zip(column) {
        let seen = async {
            let (key, mine) = checker.prepare(situation).await?;
            let operation = operation(mine);
            let answer = checker.apply(&key, operation.clone()).await?;
            if reply_kind(&answer.reply) != expected {
                let reply = answer.reply;
                return Err(format!("{operation:?}: expected {expected:?}, got {reply:?}"));
            }
            // The same command again, as after a lost reply.
            checker.apply(&key, operation).await?;
            checker.probe(&key, mine).await
        };
        seen.await.map_err(|seen| format!("{situation:?}: {seen}"))?;
    }
    Ok(())
}

fn reply_kind(reply: &Reply) -> ReplyKind {
    match reply {
        Reply::Acquired { .. } => Acquired,
        Reply::Exhausted { .. } => Exhausted,
        Reply::Locked { .. } => Locked,
        Reply::BackingOff { .. } => BackingOff,
        Reply::Duplicate { .. } => Duplicate,
        Reply::AlreadyGivenUp { .. } => AlreadyGivenUp,
        Reply::Renewed => Renewed,
        Reply::Completed => Completed,
        Reply::Retrying => Retrying,
        Reply::Released => Released,
        Reply::StepRecorded => StepRecorded,
        Reply::GivenUp => GivenUp,
        Reply::Reopened => Reopened,
        Reply::Settled(state) => ReplyKind::Settled(*state),
        Reply::Lost => Lost,
        _ => ReplyKind::Other,
    }
}
