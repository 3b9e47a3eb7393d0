//! Concurrent commands on one key.

use std::time::Duration;

use campanile_core::{Operation, Reply, State, StoreKey};
use campanile_idempotency::Store;
use futures_util::future::join_all;

use super::Time;
use super::checker::{CheckResult, LONG_DURATION, ModelChecker, acquire, complete, fail};
use super::situations::Situation;

/// Number of times each race is run.
const ROUNDS: usize = 20;

pub(super) async fn of_many_who_acquire_at_once_one_is_granted<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    const CONTENDERS: usize = 16;
    for situation in [Situation::Absent, Situation::RetryingDue].repeat(ROUNDS) {
        let (key, _) = checker.prepare(situation).await?;
        let replies = race(checker, &key, (0..CONTENDERS).map(|_| acquire(LONG_DURATION))).await?;
        let granted = |reply: &&Reply| matches!(reply, Reply::Acquired { .. });
        let locked = |reply: &&Reply| matches!(reply, Reply::Locked { .. });
        if replies.iter().filter(granted).count() != 1
            || replies.iter().filter(locked).count() != CONTENDERS - 1
        {
            return Err(format!("{situation:?}: expected exactly one grant, got {replies:?}"));
        }
    }
    Ok(())
}

pub(super) async fn of_completion_and_failure_at_once_one_wins<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    for round in 0..ROUNDS {
        let (key, grant) = checker.prepare(Situation::ProcessingLive).await?;
        let mut operations = [complete(grant), fail(grant, Duration::ZERO)];
        let failure_first = round % 2 == 1;
        if failure_first {
            operations.reverse();
        }
        let mut replies = race(checker, &key, operations).await?;
        if failure_first {
            replies.reverse();
        }
        match replies[..] {
            [Reply::Completed, Reply::Settled(State::Completed)]
            | [Reply::Settled(State::Retrying), Reply::Retrying] => {}
            _ => return Err(format!("expected one winner, got {replies:?}")),
        }
    }
    Ok(())
}

async fn race<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
    key: &StoreKey,
    operations: impl IntoIterator<Item = Operation>,
) -> CheckResult<Vec<Reply>> {
    let calls = operations
        .into_iter()
        .map(|operation| checker.store.apply(checker.command(key, operation)));
    let answers = join_all(calls).await.into_iter();
    let replies = answers.map(|answer| answer.map(|answer| answer.reply));
    let replies: Result<_, _> = replies.collect();
    replies.map_err(|error| format!("a command of a race failed: {error}"))
}
