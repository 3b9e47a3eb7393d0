//! Fingerprints and replies.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{FencingToken, Fingerprint, Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::situations::Situation;
use super::witness::{Kept, LONG, MAX_ATTEMPTS, Witness, acquire, complete, fail, owner, reject};

/// Creates an acquire for the payload.
fn acquire_for(payload: &str) -> Operation {
    Operation::Acquire {
        owner: owner(),
        ttl: LONG,
        max_attempts: MAX_ATTEMPTS,
        fingerprint: Some(Fingerprint::of(payload.as_bytes())),
        floor: FencingToken::ZERO,
    }
}

pub(super) async fn another_payload_is_a_mismatch_in_every_state<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let ends = [
        None,
        Some(complete as fn(_) -> _),
        Some(|grant| fail(grant, Duration::ZERO)),
        Some(|grant| Operation::Release { grant, ran: true }),
        Some(reject),
    ];
    for end in ends {
        let key = witness.key();
        let grant = witness.grant(&key, acquire_for("honest")).await?;
        if let Some(end) = end {
            witness.apply(&key, end(grant)).await?;
        }
        let other = acquire_for("tampered");
        witness.expect(&key, other.clone(), Reply::Mismatch).await?;
        witness.expect(&key, other, Reply::Mismatch).await?;
        // The original payload is still answered as before.
        witness.apply(&key, acquire_for("honest")).await?;
        witness.reveal(&key, grant).await?;
    }
    Ok(())
}

pub(super) async fn a_key_that_was_never_tried_may_change_its_payload<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let key = witness.key();
    let grant = witness.grant(&key, acquire_for("first")).await?;
    let release = Operation::Release { grant, ran: false };
    witness.expect(&key, release, Reply::Released).await?;
    let grant = witness.grant(&key, acquire_for("second")).await?;
    witness.expect(&key, acquire_for("first"), Reply::Mismatch).await?;
    witness.expect(&key, complete(grant), Reply::Completed).await?;
    witness.expect(&key, acquire_for("first"), Reply::Mismatch).await
}

pub(super) async fn no_fingerprint_matches_every_payload<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let key = witness.key();
    let release = |grant| Operation::Release { grant, ran: true };
    let grant = witness.grant(&key, acquire(LONG)).await?;
    witness.apply(&key, release(grant)).await?;
    let grant = witness.grant(&key, acquire_for("first")).await?;
    witness.apply(&key, release(grant)).await?;
    // A caller that does not compare payloads leaves the fingerprint unchanged.
    let grant = witness.grant(&key, acquire(LONG)).await?;
    witness.apply(&key, release(grant)).await?;
    witness.expect(&key, acquire_for("second"), Reply::Mismatch).await
}

pub(super) async fn a_reply_comes_back_byte_for_byte<S: Store, T: Time>(
    witness: &Witness<'_, S, T>,
) -> Kept {
    let every_byte: Vec<u8> = (0..=255).collect();
    let replies =
        [None, Some(Bytes::new()), Some(every_byte.into()), Some(vec![0xff; 4 * 1024].into())];
    for reply in replies {
        // Adopted, or completed under the lock.
        for situation in [Situation::Absent, Situation::ProcessingLive] {
            let (key, grant) = witness.bring(situation).await?;
            let complete =
                Operation::Complete { grant, attempt: 1, fingerprint: None, reply: reply.clone() };
            witness.expect(&key, complete, Reply::Completed).await?;
            match witness.apply(&key, acquire(LONG)).await?.reply {
                Reply::Duplicate { reply: kept, .. } if kept == reply => {}
                other => return Err(format!("expected Duplicate with {reply:?}, got {other:?}")),
            }
        }
    }
    Ok(())
}
