//! The recorded steps of handlers.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::limits::{MAX_STEP_NAME_BYTES, MAX_STEPS_BYTES};
use campanile_core::{Grant, Operation, Reply, StoreKey};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, ModelChecker, SHORT_DURATION, acquire, complete, fail, give_up,
    record_step, redrive,
};
use super::situations::Situation;

type Step = (&'static str, &'static [u8]);

impl<S: Store, T: Time> ModelChecker<'_, S, T> {
    /// Acquires the key and checks the steps that the handler gets.
    async fn grant_with(&self, key: &StoreKey, steps: &[Step]) -> CheckResult<Grant> {
        let operation = acquire(SHORT_DURATION);
        let Operation::Acquire { owner, .. } = operation else { unreachable!() };
        match self.apply(key, operation).await?.reply {
            Reply::Acquired { token, steps: found, .. } => {
                let seen = |name| found.as_ref().and_then(|found| found.get(name));
                match steps.iter().find(|(name, result)| seen(name).as_deref() != Some(result)) {
                    Some((name, _)) => Err(format!("step {name:?} is missing: {found:?}")),
                    None if steps.is_empty() && found.is_some() => Err(format!("{found:?}")),
                    None => Ok(Grant { token, owner }),
                }
            }
            other => Err(format!("expected Acquired, got {other:?}")),
        }
    }

    async fn record(&self, key: &StoreKey, grant: Grant, (name, result): Step) -> CheckResult {
        self.expect(key, record_step(grant, name, result), Reply::StepRecorded).await
    }
}

/// However an attempt ends, the next one gets the steps, also under the next lock after a crash.
pub(super) async fn a_step_is_kept_until_its_key_is_completed<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    const FIRST: Step = ("reserve", b"r-1");
    const SECOND: Step = ("charge", b"\0\xff");
    const BOTH: &[Step] = &[FIRST, SECOND];
    let ends: [fn(Grant) -> Operation; 4] = [
        |grant| fail(grant, Duration::ZERO),
        |grant| Operation::Release { grant, ran: true },
        |grant| Operation::Cancel { owner: grant.owner },
        give_up,
    ];
    for end in ends {
        let key = checker.key();
        let grant = checker.grant_with(&key, &[]).await?;
        checker.record(&key, grant, FIRST).await?;
        // The lock expires, as after a crash.
        checker.wait(SHORT_DURATION).await?;
        let grant = checker.grant_with(&key, &[FIRST]).await?;
        checker.record(&key, grant, SECOND).await?;
        let ended = checker.apply(&key, end(grant)).await?.reply;
        if ended == Reply::GivenUp {
            checker.expect(&key, redrive(grant.token, false), Reply::Reopened).await?;
        }
        let grant = checker.grant_with(&key, BOTH).await?;
        checker.expect(&key, complete(grant), Reply::Completed).await?;
        checker.expect(&key, redrive(grant.token, true), Reply::Reopened).await?;
        checker.grant_with(&key, &[]).await?;
    }
    Ok(())
}

pub(super) async fn the_first_result_of_a_step_is_kept<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, grant) = checker.prepare(Situation::ProcessingLive).await?;
    checker.record(&key, grant, ("charge", b"ch-1")).await?;
    checker.record(&key, grant, ("charge", b"ch-2")).await?;
    // A prefix of another name is another name.
    checker.record(&key, grant, ("char", b"")).await?;
    checker.apply(&key, fail(grant, Duration::ZERO)).await?;
    checker.grant_with(&key, &[("charge", b"ch-1"), ("char", b"")]).await?;
    Ok(())
}

/// Steps are part of the reply to the holder of the lock only.
pub(super) async fn a_step_is_not_seen_before_the_lock_is_granted<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, grant) = checker.prepare(Situation::ProcessingLive).await?;
    checker.record(&key, grant, ("charge", b"ch-1")).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Locked { .. } => {}
        other => return Err(format!("expected Locked, got {other:?}")),
    }
    let renew = Operation::Renew { grant, ttl: LONG_DURATION };
    checker.expect(&key, renew, Reply::Renewed).await
}

pub(super) async fn a_step_beyond_the_limits_is_refused<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    const PREFIXES: usize = 5;
    let (key, grant) = checker.prepare(Situation::ProcessingLive).await?;
    let record = |name: &str, len| {
        let result = Bytes::from(vec![7; len]);
        Operation::RecordStep { grant, name: name.into(), result }
    };
    let longest = "n".repeat(MAX_STEP_NAME_BYTES);
    let too_long = format!("{longest}n");
    checker.expect(&key, record(&too_long, 0), Reply::StepTooLarge).await?;
    checker.expect(&key, record(&longest, 0), Reply::StepRecorded).await?;
    let left = MAX_STEPS_BYTES - PREFIXES - MAX_STEP_NAME_BYTES;
    checker.expect(&key, record("s", left - PREFIXES), Reply::StepTooLarge).await?;
    checker.expect(&key, record("s", left - PREFIXES - 1), Reply::StepRecorded).await?;
    checker.expect(&key, record("", 0), Reply::StepTooLarge).await?;
    checker.probe(&key, grant).await
}
