//! Promises that show only across several grants of a key.

use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_ERROR_BYTES, MAX_INTERRUPTS, MAX_LOCK_TTL};
use campanile_core::{Command, FencingToken, Grant, Operation, Reply, Retention, StoreKey};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, MAX_ATTEMPTS, ModelChecker, SHORT_DURATION, acquire, acquire_as,
    complete, fail, give_up, owner, redrive,
};
use super::situations::Situation;

pub(super) async fn tokens_rise_with_each_grant<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let mut last = FencingToken::ZERO;
    let ends: [fn(Grant) -> Operation; 4] = [
        |grant| fail(grant, Duration::ZERO),
        |grant| Operation::Release { grant, ran: true },
        |grant| Operation::Release { grant, ran: false },
        |grant| Operation::Cancel { owner: grant.owner },
    ];
    for end in ends {
        let grant = checker.grant_and_end(&key, end).await?;
        check_increasing(&mut last, grant.token)?;
    }
    let expired = checker.grant(&key, acquire(SHORT_DURATION)).await?;
    check_increasing(&mut last, expired.token)?;
    checker.wait(SHORT_DURATION).await?;
    let given_up = checker.grant_and_end(&key, give_up).await?;
    check_increasing(&mut last, given_up.token)?;
    checker.apply(&key, redrive(given_up.token, false)).await?;
    let reopened = checker.grant(&key, acquire(LONG_DURATION)).await?;
    check_increasing(&mut last, reopened.token)
}

fn check_increasing(last: &mut FencingToken, token: FencingToken) -> CheckResult {
    if token <= *last {
        return Err(format!("token {token} does not exceed the previous token {last}"));
    }
    *last = token;
    Ok(())
}

/// A process is never granted a token below one that it has seen from another key or server.
pub(super) async fn no_token_is_below_the_floor<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (seen, _) = checker.prepare(Situation::ProcessingLive).await?;
    let floor = checker.token(&seen).expect("was granted").get() + 3_600_000_000;
    for situation in [Situation::Absent, Situation::RetryingDue] {
        let (key, _) = checker.prepare(situation).await?;
        let grant = checker.grant(&key, acquire_above(floor)).await?;
        if grant.token.get() <= floor {
            return Err(format!("{situation:?}: floor {floor}, token {}", grant.token));
        }
    }
    Ok(())
}

fn acquire_above(floor: u64) -> Operation {
    Operation::Acquire {
        owner: owner(),
        ttl: LONG_DURATION,
        max_attempts: MAX_ATTEMPTS,
        fingerprint: None,
        floor: FencingToken::new(floor).expect("below 2^53"),
        details: None,
    }
}

impl<S: Store, T: Time> ModelChecker<'_, S, T> {
    /// Creates a key that has no larger token left and can be granted next.
    pub(super) async fn key_with_exhausted_tokens(&self) -> CheckResult<StoreKey> {
        const LARGEST: u64 = (1 << 53) - 1;
        let key = self.key();
        let grant = self.grant(&key, acquire_above(LARGEST - 1)).await?;
        let failed = fail(grant, Duration::ZERO);
        self.expect(&key, failed, Reply::Retrying).await?;
        Ok(key)
    }
}

pub(super) async fn a_grant_without_a_token_left_is_refused_and_nothing_is_written<
    S: Store,
    T: Time,
>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key_with_exhausted_tokens().await?;
    checker.expect(&key, acquire(LONG_DURATION), Reply::Corrupt).await?;
    checker.expect(&key, acquire(LONG_DURATION), Reply::Corrupt).await?;
    let token = checker.token(&key).expect("was granted");
    let forced = redrive(token, true);
    checker.expect(&key, forced, Reply::Reopened).await
}

/// Attempts count at the grant and not at the failure, so that a record that kills its process runs
/// out of attempts.
pub(super) async fn an_attempt_is_counted_when_it_is_granted<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    for expected in 1..=MAX_ATTEMPTS {
        let owner = owner();
        // A repeat of the command counts once.
        for _ in 0..2 {
            match checker.apply(&key, acquire_as(owner, SHORT_DURATION)).await?.reply {
                Reply::Acquired { attempt, .. } if attempt == expected => {}
                other => return Err(format!("expected attempt {expected}, got {other:?}")),
            }
        }
        checker.wait(SHORT_DURATION).await?; // the owner has crashed
    }
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Exhausted { attempt, .. } if attempt == MAX_ATTEMPTS => Ok(()),
        other => Err(format!("expected Exhausted after {MAX_ATTEMPTS} crashes, got {other:?}")),
    }
}

pub(super) async fn a_key_that_is_not_interrupted_runs_out_of_attempts<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, _) = checker.prepare(Situation::RetryingExhausted).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Exhausted { .. } => Ok(()),
        other => Err(format!("expected Exhausted after {MAX_ATTEMPTS} failures, got {other:?}")),
    }
}

pub(super) async fn attempts_that_ran_are_handed_back_eight_times<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let mut grants = 0;
    while let Reply::Acquired { token, .. } = {
        let acquire = acquire_as(nth_owner(grants), LONG_DURATION);
        checker.apply(&key, acquire).await?.reply
    } {
        let owner = nth_owner(grants);
        let release = Operation::Release { grant: Grant { token, owner }, ran: true };
        for _ in 0..2 {
            checker.expect(&key, release.clone(), Reply::Released).await?;
        }
        grants += 1;
        if grants > 100 {
            return Err("the attempt is handed back without limit".into());
        }
    }
    let expected = u32::from(MAX_INTERRUPTS) + u32::from(MAX_ATTEMPTS);
    if grants == expected {
        Ok(())
    } else {
        Err(format!("expected {expected} grants before the give-up, got {grants}"))
    }
}

fn nth_owner(number: u32) -> campanile_core::Owner {
    campanile_core::Owner::new(u64::from(number) + 1).expect("not zero")
}

pub(super) async fn the_last_error_is_told_by_the_give_up_lock<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, _) = checker.prepare(Situation::RetryingPermanentFailure).await?;
    for _ in 0..2 {
        let owner = owner();
        for _ in 0..2 {
            match checker.apply(&key, acquire_as(owner, SHORT_DURATION)).await?.reply {
                Reply::Exhausted { last_error: Some(error), .. }
                    if &*error == "no such account" => {}
                other => {
                    return Err(format!(
                        "expected the permanent_failure entry's error, got {other:?}"
                    ));
                }
            }
        }
        checker.wait(SHORT_DURATION).await?;
    }
    // A failed give-up reports no error of its own, and neither does a rejection without a reason.
    // The handler's last error is kept.
    let grant = checker.grant(&key, acquire(LONG_DURATION)).await?;
    let quiet = Operation::Fail { grant, delay: Duration::ZERO, last: false, error: "".into() };
    checker.expect(&key, quiet, Reply::Retrying).await?;
    let grant = checker.grant(&key, acquire(LONG_DURATION)).await?;
    let reason = "".into();
    checker.expect(&key, Operation::GiveUp { grant, reason }, Reply::GivenUp).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::AlreadyGivenUp { reason: Some(error), .. } if &*error == "no such account" => Ok(()),
        other => Err(format!("expected the entry that was given up's error, got {other:?}")),
    }
}

pub(super) async fn a_give_up_that_runs_out_counts_and_one_that_is_let_go_does_not<
    S: Store,
    T: Time,
>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, _) = checker.prepare(Situation::RetryingPermanentFailure).await?;
    let ends: [fn(Grant) -> Operation; 4] = [
        |grant| fail(grant, Duration::ZERO),
        |grant| Operation::Release { grant, ran: false },
        |grant| Operation::Release { grant, ran: true },
        |grant| Operation::Cancel { owner: grant.owner },
    ];
    for crashes in 0..2 {
        for end in ends {
            let grant = acquire_give_up(checker, &key, LONG_DURATION, crashes + 1).await?;
            checker.apply(&key, end(grant)).await?;
        }
        acquire_give_up(checker, &key, SHORT_DURATION, crashes + 1).await?;
        checker.wait(SHORT_DURATION).await?;
    }
    Ok(())
}

/// Acquires a give-up lock and checks that it is the `expected`-th.
async fn acquire_give_up<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
    key: &StoreKey,
    ttl: Duration,
    expected: u8,
) -> CheckResult<Grant> {
    let owner = owner();
    match checker.apply(key, acquire_as(owner, ttl)).await?.reply {
        Reply::Exhausted { token, attempt: 1, give_ups, .. } if give_ups == expected => {
            Ok(Grant { token, owner })
        }
        other => Err(format!("expected give-up {expected}, got {other:?}")),
    }
}

pub(super) async fn a_renewal_never_shortens_the_lock<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (key, grant) = checker.prepare(Situation::ProcessingLive).await?;
    let shorter = Operation::Renew { grant, ttl: SHORT_DURATION };
    checker.expect(&key, shorter, Reply::Renewed).await?;
    checker.apply(&key, acquire_as(grant.owner, SHORT_DURATION)).await?;
    checker.wait(SHORT_DURATION).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Locked { .. } => Ok(()),
        other => Err(format!("expected Locked after a shorter renewal, got {other:?}")),
    }
}

pub(super) async fn a_repeated_failure_does_not_move_the_next_attempt<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let delay = Duration::from_millis(20);
    let grant = checker.grant_and_end(&key, |grant| fail(grant, delay)).await?;
    checker.wait(delay / 2).await?;
    checker.expect(&key, fail(grant, LONG_DURATION), Reply::Retrying).await?;
    checker.wait(delay / 2).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Acquired { .. } => Ok(()),
        other => Err(format!("expected Acquired after {delay:?} of backoff, got {other:?}")),
    }
}

/// The limit holds for backoffs too; otherwise one client could block the others for any length of
/// time.
pub(super) async fn a_lock_longer_than_the_longest_is_cut<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let grant = checker.grant(&key, acquire(MAX_LOCK_TTL * 3)).await?;
    let ttl = MAX_LOCK_TTL * 3;
    checker.expect(&key, Operation::Renew { grant, ttl }, Reply::Renewed).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::Locked { remaining } if remaining <= MAX_LOCK_TTL => {}
        other => return Err(format!("lock for {ttl:?} not clamped: {other:?}")),
    }
    checker.apply(&key, fail(grant, MAX_BACKOFF * 3)).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::BackingOff { remaining, .. } if remaining <= MAX_BACKOFF => Ok(()),
        other => Err(format!("backoff of {:?} not clamped: {other:?}", MAX_BACKOFF * 3)),
    }
}

pub(super) async fn an_error_longer_than_is_kept_is_cut<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    // Three bytes per character, so that the limit falls inside a character.
    let long = "鐘".repeat(MAX_ERROR_BYTES);
    let key = checker.key();
    let given_up = |grant| Operation::GiveUp { grant, reason: long.as_str().into() };
    checker.grant_and_end(&key, given_up).await?;
    match checker.apply(&key, acquire(LONG_DURATION)).await?.reply {
        Reply::AlreadyGivenUp { reason: Some(kept), .. }
            if kept.len() == MAX_ERROR_BYTES / 3 * 3 && long.starts_with(&*kept) =>
        {
            Ok(())
        }
        other => Err(format!("error of {} bytes not truncated: {other:?}", long.len())),
    }
}

/// The entry is not removed earlier. Afterwards it is gone, along with its counters.
pub(super) async fn an_entry_lives_as_long_as_it_is_retained<S: Store, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let short = Duration::from_millis(300);
    let only = |kept: fn(&mut Retention) -> &mut Duration| {
        let mut retention = checker.command(&checker.key(), acquire(LONG_DURATION)).retention;
        *kept(&mut retention) = short;
        retention
    };
    let ends: [(Operation, Retention); 3] = {
        let grant = Grant { token: FencingToken::ZERO, owner: owner() };
        [
            (complete(grant), only(|kept| &mut kept.completed)),
            (give_up(grant), only(|kept| &mut kept.failed)),
            (fail(grant, LONG_DURATION), only(|kept| &mut kept.attempts)),
        ]
    };
    for (end, retention) in ends {
        let key = checker.key();
        let mine = checker.grant(&key, acquire(LONG_DURATION)).await?;
        let operation = match end {
            Operation::Complete { .. } => complete(mine),
            Operation::GiveUp { .. } => give_up(mine),
            _ => fail(mine, LONG_DURATION),
        };
        let command = Command { key: key.clone(), operation, retention };
        let name = command.operation.name();
        let end_answer = checker.store.apply(command).await;
        let ended_at = end_answer.map_err(|error| format!("{name} failed: {error}"))?.now;
        loop {
            // Acquires without writing: none of these keys can be acquired while its entry exists.
            let acquired = checker.store.apply(checker.command(&key, acquire(LONG_DURATION)));
            let answer = acquired.await.map_err(|error| error.to_string())?;
            let age = answer.now.duration_since(ended_at).unwrap_or_default();
            match answer.reply {
                Reply::Acquired { attempt: 1, .. } if age >= short => break,
                Reply::Duplicate { .. }
                | Reply::AlreadyGivenUp { .. }
                | Reply::BackingOff { .. }
                    if age < LONG_DURATION => {}
                other => return Err(format!("{age:?} after {name}: {other:?}")),
            }
            checker.wait(short / 3).await?;
        }
    }
    Ok(())
}
