//! The situations in which an operation can find an entry.

use std::time::Duration;

use campanile_core::{FencingToken, Grant, Operation, Reply, StoreKey};
use campanile_idempotency::Store;

use super::Time;
use super::checker::{
    CheckResult, LONG_DURATION, MAX_ATTEMPTS, ModelChecker, SHORT_DURATION, acquire, complete,
    fail, give_up, owner, redrive,
};

/// The state of an entry as its last grant ("mine") left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Situation {
    Absent,
    ProcessingLive,
    ProcessingExpired,
    ProcessingGivingUp,
    RetryingWaiting,
    RetryingDue,
    RetryingReleased,
    RetryingPermanentFailure,
    RetryingExhausted,
    RetryingReopened,
    Completed,
    Failed,
}

use Situation::{
    Absent, Completed, Failed, ProcessingExpired, ProcessingGivingUp, ProcessingLive, RetryingDue,
    RetryingExhausted, RetryingPermanentFailure, RetryingReleased, RetryingReopened,
    RetryingWaiting,
};

impl Situation {
    pub(super) const ALL: [Self; 12] = [
        Absent,
        ProcessingLive,
        ProcessingExpired,
        ProcessingGivingUp,
        RetryingWaiting,
        RetryingDue,
        RetryingReleased,
        RetryingPermanentFailure,
        RetryingExhausted,
        RetryingReopened,
        Completed,
        Failed,
    ];
}

impl<S: Store, T: Time> ModelChecker<'_, S, T> {
    /// Creates a key in this situation and its last grant. An absent entry gets a grant that was
    /// never made.
    pub(super) async fn prepare(&self, situation: Situation) -> CheckResult<(StoreKey, Grant)> {
        let key = self.key();
        let grant = match situation {
            Absent => Grant { token: FencingToken::new(1).expect("small"), owner: owner() },
            ProcessingLive => self.grant(&key, acquire(LONG_DURATION)).await?,
            ProcessingExpired => {
                let grant = self.grant(&key, acquire(SHORT_DURATION)).await?;
                self.wait(SHORT_DURATION).await?;
                grant
            }
            ProcessingGivingUp => {
                self.grant_and_end(&key, fail_last).await?;
                self.grant(&key, acquire(LONG_DURATION)).await?
            }
            RetryingWaiting => self.grant_and_end(&key, |grant| fail(grant, LONG_DURATION)).await?,
            RetryingDue => self.grant_and_end(&key, |grant| fail(grant, Duration::ZERO)).await?,
            RetryingReleased => {
                let release = |grant| Operation::Release { grant, ran: false };
                self.grant_and_end(&key, release).await?
            }
            RetryingPermanentFailure => self.grant_and_end(&key, fail_last).await?,
            RetryingExhausted => {
                for _ in 1..MAX_ATTEMPTS {
                    self.grant_and_end(&key, |grant| fail(grant, Duration::ZERO)).await?;
                }
                self.grant_and_end(&key, |grant| fail(grant, Duration::ZERO)).await?
            }
            RetryingReopened => {
                let grant = self.grant_and_end(&key, give_up).await?;
                let redrive = redrive(grant.token, false);
                self.expect(&key, redrive, Reply::Reopened).await?;
                grant
            }
            Completed => self.grant_and_end(&key, complete).await?,
            Failed => self.grant_and_end(&key, give_up).await?,
        };
        Ok((key, grant))
    }

    /// Acquires the key, and ends the grant with this operation.
    pub(super) async fn grant_and_end(
        &self,
        key: &StoreKey,
        end: impl FnOnce(Grant) -> Operation,
    ) -> CheckResult<Grant> {
        let grant = self.grant(key, acquire(LONG_DURATION)).await?;
        self.apply(key, end(grant)).await?;
        Ok(grant)
    }

    /// Applies commands until their answers reveal the entry: each answer depends on more of its
    /// fields.
    pub(super) async fn probe(&self, key: &StoreKey, mine: Grant) -> CheckResult {
        self.apply(key, Operation::Renew { grant: mine, ttl: SHORT_DURATION }).await?;
        self.apply(key, acquire(SHORT_DURATION)).await?;
        self.wait(SHORT_DURATION).await?;
        self.apply(key, fail(mine, Duration::ZERO)).await?;
        let next = self.apply(key, acquire(LONG_DURATION)).await?;
        if let Reply::Acquired { .. } | Reply::Exhausted { .. } = next.reply {
            self.apply(key, complete(mine)).await?;
            self.apply(key, acquire(LONG_DURATION)).await?;
        }
        Ok(())
    }
}

fn fail_last(grant: Grant) -> Operation {
    Operation::Fail { grant, delay: Duration::ZERO, last: true, error: "no such account".into() }
}
