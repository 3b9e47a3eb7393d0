//! The situations in which an operation can find an entry.

use std::time::Duration;

use campanile_core::{FencingToken, Grant, Operation, Reply, StoreKey};
use campanile_idempotency::Store;

use super::Time;
use super::witness::{
    BRIEF, Kept, LONG, MAX_ATTEMPTS, Witness, acquire, complete, fail, owner, redrive, reject,
};

/// The state of an entry as its last grant ("mine") left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Situation {
    Absent,
    ProcessingLive,
    ProcessingExpired,
    ProcessingBurial,
    RetryingWaiting,
    RetryingDue,
    RetryingReleased,
    RetryingDoomed,
    RetryingExhausted,
    RetryingReopened,
    Completed,
    Failed,
}

use Situation::{
    Absent, Completed, Failed, ProcessingBurial, ProcessingExpired, ProcessingLive, RetryingDoomed,
    RetryingDue, RetryingExhausted, RetryingReleased, RetryingReopened, RetryingWaiting,
};

impl Situation {
    pub(super) const ALL: [Self; 12] = [
        Absent,
        ProcessingLive,
        ProcessingExpired,
        ProcessingBurial,
        RetryingWaiting,
        RetryingDue,
        RetryingReleased,
        RetryingDoomed,
        RetryingExhausted,
        RetryingReopened,
        Completed,
        Failed,
    ];
}

impl<S: Store, T: Time> Witness<'_, S, T> {
    /// Creates a key in this situation and its last grant. An absent entry gets a grant that was
    /// never made.
    pub(super) async fn bring(&self, situation: Situation) -> Kept<(StoreKey, Grant)> {
        let key = self.key();
        let grant = match situation {
            Absent => Grant { token: FencingToken::new(1).expect("small"), owner: owner() },
            ProcessingLive => self.grant(&key, acquire(LONG)).await?,
            ProcessingExpired => {
                let grant = self.grant(&key, acquire(BRIEF)).await?;
                self.wait(BRIEF).await?;
                grant
            }
            ProcessingBurial => {
                self.ended(&key, doom).await?;
                self.grant(&key, acquire(LONG)).await?
            }
            RetryingWaiting => self.ended(&key, |grant| fail(grant, LONG)).await?,
            RetryingDue => self.ended(&key, |grant| fail(grant, Duration::ZERO)).await?,
            RetryingReleased => {
                let release = |grant| Operation::Release { grant, ran: false };
                self.ended(&key, release).await?
            }
            RetryingDoomed => self.ended(&key, doom).await?,
            RetryingExhausted => {
                for _ in 1..MAX_ATTEMPTS {
                    self.ended(&key, |grant| fail(grant, Duration::ZERO)).await?;
                }
                self.ended(&key, |grant| fail(grant, Duration::ZERO)).await?
            }
            RetryingReopened => {
                let grant = self.ended(&key, reject).await?;
                let redrive = redrive(grant.token, false);
                self.expect(&key, redrive, Reply::Reopened).await?;
                grant
            }
            Completed => self.ended(&key, complete).await?,
            Failed => self.ended(&key, reject).await?,
        };
        Ok((key, grant))
    }

    /// Acquires the key, ends the grant with this operation, and returns the grant.
    pub(super) async fn ended(
        &self,
        key: &StoreKey,
        end: impl FnOnce(Grant) -> Operation,
    ) -> Kept<Grant> {
        let grant = self.grant(key, acquire(LONG)).await?;
        self.apply(key, end(grant)).await?;
        Ok(grant)
    }

    /// Applies commands until their answers reveal the entry: each answer depends on more of its
    /// fields.
    pub(super) async fn reveal(&self, key: &StoreKey, mine: Grant) -> Kept {
        self.apply(key, Operation::Renew { grant: mine, ttl: BRIEF }).await?;
        self.apply(key, acquire(BRIEF)).await?;
        self.wait(BRIEF).await?;
        self.apply(key, fail(mine, Duration::ZERO)).await?;
        let next = self.apply(key, acquire(LONG)).await?;
        if let Reply::Acquired { .. } | Reply::Exhausted { .. } = next.reply {
            self.apply(key, complete(mine)).await?;
            self.apply(key, acquire(LONG)).await?;
        }
        Ok(())
    }
}

fn doom(grant: Grant) -> Operation {
    Operation::Fail { grant, delay: Duration::ZERO, last: true, error: "no such account".into() }
}
