//! Fingerprints and replies.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{FencingToken, Fingerprint, Operation, Reply};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, MAX_ATTEMPTS, ModelChecker, acquire, complete, fail, give_up, owner,
};
use super::situations::Situation;

/// Creates an acquire for the payload.
fn acquire_for(payload: &str) -> Operation {
    Operation::Acquire {
        owner: owner(),
        ttl: LONG_DURATION,
        max_attempts: MAX_ATTEMPTS,
        fingerprint: Some(Fingerprint::of(payload.as_bytes())),
        floor: FencingToken::ZERO,
        details: None,
    }
}

pub(super) async fn another_payload_is_a_mismatch_in_every_state<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let ends = [
        None,
        Some(complete as fn(_) -> _),
        Some(|grant| fail(grant, Duration::ZERO)),
        Some(|grant| Operation::Release { grant, ran: true }),
        Some(give_up),
    ];
    for end in ends {
        let key = checker.key();
        let grant = checker.grant(&key, acquire_for("honest")).await?;
        if let Some(end) = end {
            checker.apply(&key, end(grant)).await?;
        }
        let other = acquire_for("tampered");
        checker.expect(&key, other.clone(), Reply::Mismatch).await?;
        checker.expect(&key, other, Reply::Mismatch).await?;
        // The original payload is still answered as before.
        checker.apply(&key, acquire_for("honest")).await?;
        checker.probe(&key, grant).await?;
    }
    Ok(())
}

pub(super) async fn a_key_that_was_never_tried_may_change_its_payload<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let grant = checker.grant(&key, acquire_for("first")).await?;
    let release = Operation::Release { grant, ran: false };
    checker.expect(&key, release, Reply::Released).await?;
    let grant = checker.grant(&key, acquire_for("second")).await?;
    checker.expect(&key, acquire_for("first"), Reply::Mismatch).await?;
    checker.expect(&key, complete(grant), Reply::Completed).await?;
    checker.expect(&key, acquire_for("first"), Reply::Mismatch).await
}

pub(super) async fn no_fingerprint_matches_every_payload<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let release = |grant| Operation::Release { grant, ran: true };
    let grant = checker.grant(&key, acquire(LONG_DURATION)).await?;
    checker.apply(&key, release(grant)).await?;
    let grant = checker.grant(&key, acquire_for("first")).await?;
    checker.apply(&key, release(grant)).await?;
    // A caller that does not compare payloads leaves the fingerprint unchanged.
    let grant = checker.grant(&key, acquire(LONG_DURATION)).await?;
    checker.apply(&key, release(grant)).await?;
    checker.expect(&key, acquire_for("second"), Reply::Mismatch).await
}

pub(super) async fn a_reply_comes_back_byte_for_byte<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let every_byte: Vec<u8> = (0..=255).collect();
    let replies =
        [None, Some(Bytes::new()), Some(every_byte.into()), Some(vec![0xff; 4 * 1024].into())];
    for reply in replies {
        // Adopted, or completed under the lock.
        for situation in [Situation::Absent, Situation::ProcessingLive] {
            let (key, grant) = checker.prepare(situation).await?;
            let complete = Operation::Complete {
                grant,
                attempt: 1,
                fingerprint: None,
                reply: reply.clone(),
                details: None,
            };
            checker.expect(&key, complete, Reply::Completed).await?;
            match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
                Reply::Duplicate { reply: kept, .. } if kept == reply => {}
                other => return Err(format!("expected Duplicate with {reply:?}, got {other:?}")),
            }
        }
    }
    Ok(())
}
