//! An operator expires only what may expire.

use std::time::{Duration, SystemTime};

use campanile_core::limits::MIN_RETENTION;
use campanile_core::{Entry, ExpireOutcome, FencingToken, Grant, StoreKey, error, expire};
use campanile_idempotency::{ExpireStore, Found};

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, ModelChecker, SHORT_DURATION, acquire, complete, owner, redrive,
};
use super::situations::Situation;

/// Long enough after any grant of the suite.
const LATER: Duration = LONG_DURATION.saturating_mul(2);

/// So short after a grant that no test takes as long.
const SOON: Duration = Duration::from_secs(1);

const MILLISECOND: Duration = Duration::from_millis(1);

impl<S: ExpireStore, T: Time> ModelChecker<'_, S, T> {
    /// Reads an entry, when it expires, and the clock.
    async fn read(&self, key: &StoreKey) -> CheckResult<(Option<(Entry, SystemTime)>, SystemTime)> {
        let inspection = self.store.inspect(key).await.map_err(|error| describe(&error))?;
        match inspection.found {
            Found::Absent => Ok((None, inspection.now)),
            Found::Entry { entry, expires_at } => Ok((Some((entry, expires_at)), inspection.now)),
            other => Err(format!("read {other:?}")),
        }
    }

    async fn read_entry(&self, key: &StoreKey) -> CheckResult<Entry> {
        let (found, _) = self.read(key).await?;
        found.map(|(entry, _)| entry).ok_or_else(|| "found no entry".to_owned())
    }

    async fn expire(
        &self,
        key: &StoreKey,
        read: &Entry,
        after: Duration,
    ) -> CheckResult<ExpireOutcome> {
        let outcomes = self.store.expire(&[(key.clone(), read.clone())], after).await;
        match outcomes.map_err(|error| describe(&error))?[..] {
            [outcome] => Ok(outcome),
            ref other => Err(format!("one entry has the outcomes {other:?}")),
        }
    }

    async fn expect_expire(
        &self,
        key: &StoreKey,
        read: &Entry,
        after: Duration,
        expected: ExpireOutcome,
    ) -> CheckResult {
        match self.expire(key, read, after).await? {
            outcome if outcome == expected => Ok(()),
            outcome => Err(format!("{read:?} after {after:?}: {outcome:?}, not {expected:?}")),
        }
    }

    /// Creates a COMPLETED entry with a token from a minute ago.
    async fn adopt(&self, key: &StoreKey) -> CheckResult<Grant> {
        let granted = self.now().await? - MIN_RETENTION;
        let micros = granted.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let token = u64::try_from(micros).ok().and_then(FencingToken::new);
        let grant = Grant { token: token.ok_or("the clock is out of range")?, owner: owner() };
        self.apply(key, complete(grant)).await?;
        Ok(grant)
    }
}

fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    error::sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

pub(super) async fn expiry_is_set_in_every_situation<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    for situation in Situation::ALL {
        let (key, mine) = checker.prepare(situation).await?;
        let (Some((read, before)), earliest) = checker.read(&key).await? else { continue };
        let expected = expire(Some(&read), &read, LATER, earliest);
        checker.expect_expire(&key, &read, LATER, expected).await?;
        let (found, latest) = checker.read(&key).await?;
        let (entry, expires_at) = found.ok_or("the entry is gone")?;
        let is_expected = match expected {
            // A store may have no finer resolution than a millisecond.
            ExpireOutcome::Done => {
                (earliest + LATER - MILLISECOND..=latest + LATER).contains(&expires_at)
            }
            _ => expires_at == before,
        };
        if entry != read || !is_expected {
            return Err(format!("{situation:?}: {expected:?}, and expires at {expires_at:?}"));
        }
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

pub(super) async fn recent_grant_is_kept_in_every_situation<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    for situation in Situation::ALL {
        let (key, mine) = checker.prepare(situation).await?;
        let (Some((read, _)), _) = checker.read(&key).await? else { continue };
        for after in [Duration::ZERO, SOON] {
            checker.expect_expire(&key, &read, after, ExpireOutcome::Kept).await?;
        }
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

/// Whatever was done since to the entry that was read, it is not expired.
pub(super) async fn changed_entry_is_kept_in_every_situation<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    for situation in Situation::ALL {
        let (key, mine) = checker.prepare(situation).await?;
        let (Some((read, _)), _) = checker.read(&key).await? else { continue };
        let changes = [
            acquire(SHORT_DURATION),
            acquire(LONG_DURATION),
            complete(mine),
            redrive(mine.token, true),
        ];
        for change in changes {
            checker.apply(&key, change).await?;
            let now = checker.read_entry(&key).await?;
            if now != read {
                checker.expect_expire(&key, &read, LATER, ExpireOutcome::Changed).await?;
            }
        }
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

pub(super) async fn expired_entry_is_absent<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    // COMPLETED, and RETRYING without an owner.
    for is_reopened in [false, true] {
        let key = checker.key();
        let mine = checker.adopt(&key).await?;
        if is_reopened {
            checker.apply(&key, redrive(mine.token, true)).await?;
        }
        let read = checker.read_entry(&key).await?;
        checker.expect_expire(&key, &read, Duration::ZERO, ExpireOutcome::Done).await?;
        if let (Some(found), _) = checker.read(&key).await? {
            return Err(format!("{found:?} is not deleted"));
        }
        checker.record_absence(&key);
        // Repeated, and on a key that never had an entry.
        for key in [&key, &checker.key()] {
            checker.expect_expire(key, &read, Duration::ZERO, ExpireOutcome::Changed).await?;
        }
        checker.probe(&key, mine).await?;

        let key = checker.key();
        let mine = checker.adopt(&key).await?;
        let read = checker.read_entry(&key).await?;
        checker.expect_expire(&key, &read, SHORT_DURATION, ExpireOutcome::Done).await?;
        checker.wait(SHORT_DURATION * 2).await?;
        checker.record_absence(&key);
        checker.probe(&key, mine).await?;
    }
    Ok(())
}

pub(super) async fn token_after_expiry_is_higher<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let key = checker.key();
    let former = checker.adopt(&key).await?;
    let read = checker.read_entry(&key).await?;
    checker.expect_expire(&key, &read, Duration::ZERO, ExpireOutcome::Done).await?;
    checker.record_absence(&key);
    let next = checker.grant(&key, acquire(LONG_DURATION)).await?;
    if next.token > former.token { Ok(()) } else { Err(format!("{next:?} follows {former:?}")) }
}

pub(super) async fn each_of_many_is_decided_by_itself<S: ExpireStore, T: Time>(
    checker: &ModelChecker<'_, S, T>,
) -> CheckResult {
    let (mut entries, mut expected) = (Vec::new(), Vec::new());
    for number in 0..checker.store.max_batch().get().clamp(3, 64) {
        let key = checker.key();
        let outcome = match number % 3 {
            0 => {
                checker.adopt(&key).await?;
                ExpireOutcome::Done
            }
            1 => {
                checker.grant(&key, acquire(LONG_DURATION)).await?;
                ExpireOutcome::Kept
            }
            _ => ExpireOutcome::Changed,
        };
        let read = match outcome {
            ExpireOutcome::Changed => entries.last().map(|(_, entry): &(_, Entry)| entry.clone()),
            _ => Some(checker.read_entry(&key).await?),
        };
        entries.push((key, read.ok_or("the first key has an entry")?));
        expected.push(outcome);
    }
    let outcomes = checker.store.expire(&entries, Duration::ZERO).await;
    let outcomes = outcomes.map_err(|error| describe(&error))?;
    if outcomes != expected {
        return Err(format!("expected {expected:?}, got {outcomes:?}"));
    }
    let none = checker.store.expire(&[], Duration::ZERO).await.map_err(|error| describe(&error))?;
    if none.is_empty() { Ok(()) } else { Err(format!("no entry has the outcomes {none:?}")) }
}
