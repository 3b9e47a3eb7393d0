//! Concurrent commands on one key.

use std::time::Duration;

use campanile_core::{Operation, Reply, State, StoreKey};
use campanile_idempotency::Store;
use futures_util::future::join_all;

use super::Time;
use super::situations::Situation;
use super::witness::{Kept, LONG, Witness, acquire, complete, fail};

/// Number of times each race is run.
const RACES: usize = 20;

pub(super) async fn of_many_who_acquire_at_once_one_is_granted<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    const RUNNERS: usize = 16;
    for situation in [Situation::Absent, Situation::RetryingDue].repeat(RACES) {
        let (key, _) = witness.bring(situation).await?;
        let replies = race(witness, &key, (0..RUNNERS).map(|_| acquire(LONG))).await?;
        let granted = |reply: &&Reply| matches!(reply, Reply::Acquired { .. });
        let locked = |reply: &&Reply| matches!(reply, Reply::Locked { .. });
        if replies.iter().filter(granted).count() != 1
            || replies.iter().filter(locked).count() != RUNNERS - 1
        {
            return Err(format!("{situation:?}: expected exactly one grant, got {replies:?}"));
        }
    }
    Ok(())
}

pub(super) async fn of_completion_and_failure_at_once_one_wins<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    for round in 0..RACES {
        let (key, grant) = witness.bring(Situation::ProcessingLive).await?;
        let mut operations = [complete(grant), fail(grant, Duration::ZERO)];
        let failure_first = round % 2 == 1;
        if failure_first {
            operations.reverse();
        }
        let mut replies = race(witness, &key, operations).await?;
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
    witness: &Witness<'_, S, T>,
    key: &StoreKey,
    operations: impl IntoIterator<Item = Operation>,
) -> Kept<Vec<Reply>> {
    let runs = operations
        .into_iter()
        .map(|operation| witness.store.apply(witness.command(key, operation)));
    let answers = join_all(runs).await.into_iter();
    let replies = answers.map(|answer| answer.map(|answer| answer.reply));
    let replies: Result<_, _> = replies.collect();
    replies.map_err(|error| format!("a command of a race failed: {error}"))
}
