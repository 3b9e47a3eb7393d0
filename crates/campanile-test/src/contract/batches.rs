//! Several commands in one batch.

use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::situations::Situation;
use super::witness::{BRIEF, Kept, LONG, Witness, acquire, complete, fail, redrive, reject};

pub(super) async fn a_batch_is_answered_in_its_order<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    // Every operation in every situation, shuffled. `step` checks each answer.
    let mut batch = Vec::new();
    for situation in Situation::ALL {
        for number in 0..9 {
            let (key, grant) = witness.bring(situation).await?;
            let operation = match number {
                0 => acquire(LONG),
                1 => Operation::Renew { grant, ttl: LONG },
                2 => complete(grant),
                3 => fail(grant, Duration::ZERO),
                4 => Operation::Release { grant, ran: true },
                5 => Operation::Cancel { owner: grant.owner },
                6 => reject(grant),
                7 => redrive(grant.token, false),
                _ => redrive(grant.token, true),
            };
            batch.push((key, operation, grant));
        }
    }
    fastrand::shuffle(&mut batch);
    let most = witness.store.max_batch().get();
    for part in batch.chunks(most) {
        let part = part.iter();
        let commands = part.map(|(key, operation, _)| (key.clone(), operation.clone()));
        witness.apply_batch(commands.collect()).await?;
    }
    for (key, _, grant) in batch {
        witness.reveal(&key, grant).await?;
    }
    Ok(())
}

pub(super) async fn one_keys_refusal_does_not_touch_its_neighbours<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let (held, _) = witness.bring(Situation::ProcessingLive).await?;
    let (done, _) = witness.bring(Situation::Completed).await?;
    let (taken, stale) = witness.bring(Situation::ProcessingExpired).await?;
    witness.grant(&taken, acquire(LONG)).await?;
    let spent = witness.without_tokens().await?;
    let fresh: Vec<_> = (0..4).map(|_| witness.key()).collect();
    let batch = vec![
        (fresh[0].clone(), acquire(LONG)),
        (held, acquire(LONG)),
        (fresh[1].clone(), acquire(LONG)),
        (spent, acquire(LONG)),
        (fresh[2].clone(), acquire(LONG)),
        (taken, complete(stale)),
        (fresh[3].clone(), acquire(LONG)),
        (done, acquire(BRIEF)),
    ];
    let answers = witness.apply_batch(batch).await?;
    match &answers[3].reply {
        Reply::Corrupt => {}
        other => return Err(format!("expected Corrupt when no token is left, got {other:?}")),
    }
    for key in fresh {
        match witness.apply(&key, acquire(LONG)).await?.reply {
            Reply::Locked { .. } => {}
            other => return Err(format!("expected Locked after a grant, got {other:?}")),
        }
    }
    Ok(())
}

pub(super) async fn a_full_batch_is_answered_in_full<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let keys: Vec<_> = (0..witness.store.max_batch().get()).map(|_| witness.key()).collect();
    let acquires = keys.iter().map(|key| (key.clone(), acquire(LONG)));
    witness.apply_batch(acquires.collect()).await?;
    let again = keys.into_iter().map(|key| (key, acquire(LONG)));
    for answer in witness.apply_batch(again.collect()).await? {
        if !matches!(answer.reply, Reply::Locked { .. }) {
            return Err(format!("expected Locked after a grant, got {:?}", answer.reply));
        }
    }
    Ok(())
}
