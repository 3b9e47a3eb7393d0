//! Several commands in one batch.

use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, ModelChecker, SHORT_DURATION, acquire, complete, fail, give_up,
    redrive,
};
use super::situations::Situation;

pub(super) async fn a_batch_is_answered_in_its_order<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    // Every operation in every situation, shuffled. `step` checks each answer.
    let mut batch = Vec::new();
    for situation in Situation::ALL {
        for number in 0..9 {
            let (key, grant) = checker.prepare(situation).await?;
            let operation = match number {
                0 => acquire(LONG_DURATION),
                1 => Operation::Renew { grant, ttl: LONG_DURATION },
                2 => complete(grant),
                3 => fail(grant, Duration::ZERO),
                4 => Operation::Release { grant, ran: true },
                5 => Operation::Cancel { owner: grant.owner },
                6 => give_up(grant),
                7 => redrive(grant.token, false),
                _ => redrive(grant.token, true),
            };
            batch.push((key, operation, grant));
        }
    }
    fastrand::shuffle(&mut batch);
    let max_batch = checker.store.max_batch().get();
    for part in batch.chunks(max_batch) {
        let part = part.iter();
        let commands = part.map(|(key, operation, _)| (key.clone(), operation.clone()));
        checker.apply_batch(commands.collect()).await?;
    }
    for (key, _, grant) in batch {
        checker.probe(&key, grant).await?;
    }
    Ok(())
}

pub(super) async fn one_keys_refusal_does_not_touch_its_neighbours<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (held, _) = checker.prepare(Situation::ProcessingLive).await?;
    let (done, _) = checker.prepare(Situation::Completed).await?;
    let (taken, stale) = checker.prepare(Situation::ProcessingExpired).await?;
    checker.grant(&taken, acquire(LONG_DURATION)).await?;
    let spent = checker.key_with_exhausted_tokens().await?;
    let fresh: Vec<_> = (0..4).map(|_| checker.key()).collect();
    let batch = vec![
        (fresh[0].clone(), acquire(LONG_DURATION)),
        (held, acquire(LONG_DURATION)),
        (fresh[1].clone(), acquire(LONG_DURATION)),
        (spent, acquire(LONG_DURATION)),
        (fresh[2].clone(), acquire(LONG_DURATION)),
        (taken, complete(stale)),
        (fresh[3].clone(), acquire(LONG_DURATION)),
        (done, acquire(SHORT_DURATION)),
    ];
    let answers = checker.apply_batch(batch).await?;
    match &answers[3].reply {
        Reply::Corrupt => {}
        other => return Err(format!("expected Corrupt when no token is left, got {other:?}")),
    }
    for key in fresh {
        match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
            Reply::Locked { .. } => {}
            other => return Err(format!("expected Locked after a grant, got {other:?}")),
        }
    }
    Ok(())
}

pub(super) async fn a_full_batch_is_answered_in_full<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let keys: Vec<_> = (0..checker.store.max_batch().get()).map(|_| checker.key()).collect();
    let acquires = keys.iter().map(|key| (key.clone(), acquire(LONG_DURATION)));
    checker.apply_batch(acquires.collect()).await?;
    let again = keys.into_iter().map(|key| (key, acquire(LONG_DURATION)));
    for answer in checker.apply_batch(again.collect()).await? {
        if !matches!(answer.reply, Reply::Locked { .. }) {
            return Err(format!("expected Locked after a grant, got {:?}", answer.reply));
        }
    }
    Ok(())
}
