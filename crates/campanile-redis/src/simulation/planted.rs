//! Bugs that tests plant in the store and the keeper, to verify that the simulation finds them.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{Answer, Command, Grant, Operation, Owner, Reply, StoreKey};
use campanile_idempotency::{Store, StoreError};
use campanile_test::TestClock;

use crate::RedisStore;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The error that a script is not cached counts as its usual answer.
    UncachedScriptAnswered,
    /// A connection that broke, or did not answer in time, is used again.
    ConnectionKept,
    /// A new connection begins with a reply that the previous one has lost.
    StaleReply,
    /// An acquire without an answer is repeated with another nonce.
    RepeatedWithFreshNonce,
    /// An acquire without an answer is not cancelled.
    CancelNotSent,
    /// A renewal without an answer counts as one that was confirmed.
    RenewalResultIgnored,
    /// A completion without an answer is not repeated.
    CompletionNotRepeated,
}

impl Bug {
    pub(super) const ALL: [Self; 7] = [
        Self::UncachedScriptAnswered,
        Self::ConnectionKept,
        Self::StaleReply,
        Self::RepeatedWithFreshNonce,
        Self::CancelNotSent,
        Self::RenewalResultIgnored,
        Self::CompletionNotRepeated,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// The store as the keeper sees it: with the bugs of a keeper, if one is planted.
#[derive(Clone)]
pub(super) struct KeeperBugs {
    store: RedisStore,
    clock: TestClock,
    /// The nonces that replace those of the keeper.
    fresh_nonces: Arc<Mutex<HashMap<(StoreKey, Owner), Owner>>>,
}

impl KeeperBugs {
    pub(super) fn new(store: RedisStore, clock: TestClock) -> Self {
        Self { store, clock, fresh_nonces: Arc::default() }
    }

    /// The answer that the keeper assumes without sending the command, or after an error.
    fn assumed(&self, reply: Reply) -> Result<Answer, StoreError> {
        Ok(Answer::new(self.clock.now(), reply))
    }

    async fn with_fresh_nonce(&self, mut command: Command) -> Result<Answer, StoreError> {
        let fresh = |owner: Owner| Owner::new(owner.get() ^ 1).unwrap_or(owner);
        match &mut command.operation {
            Operation::Acquire { owner, .. } => {
                let nonce = *owner;
                let answer = self.store.apply(command.clone()).await;
                if answer.is_ok() {
                    return answer;
                }
                let Operation::Acquire { owner, .. } = &mut command.operation else {
                    unreachable!("the operation is an acquire")
                };
                *owner = fresh(nonce);
                self.fresh_nonces.lock().unwrap().insert((command.key.clone(), nonce), *owner);
            }
            Operation::Cancel { owner } => *owner = self.nonce_of(&command.key, *owner),
            Operation::Renew { grant, .. }
            | Operation::Complete { grant, .. }
            | Operation::Fail { grant, .. }
            | Operation::Release { grant, .. }
            | Operation::GiveUp { grant, .. } => {
                let Grant { token, owner } = *grant;
                *grant = Grant { token, owner: self.nonce_of(&command.key, owner) };
            }
            _ => {}
        }
        self.store.apply(command).await
    }

    fn nonce_of(&self, key: &StoreKey, owner: Owner) -> Owner {
        let nonces = self.fresh_nonces.lock().unwrap();
        nonces.get(&(key.clone(), owner)).copied().unwrap_or(owner)
    }
}

impl Store for KeeperBugs {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        if is_planted(Bug::RepeatedWithFreshNonce) {
            return self.with_fresh_nonce(command).await;
        }
        match command.operation {
            Operation::Cancel { .. } if is_planted(Bug::CancelNotSent) => {
                self.assumed(Reply::Released)
            }
            Operation::Renew { .. } if is_planted(Bug::RenewalResultIgnored) => {
                let answer = self.store.apply(command).await;
                answer.or_else(|_| self.assumed(Reply::Renewed))
            }
            Operation::Complete { .. } if is_planted(Bug::CompletionNotRepeated) => {
                let answer = self.store.apply(command).await;
                answer.or_else(|_| self.assumed(Reply::Completed))
            }
            _ => self.store.apply(command).await,
        }
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        if PLANTED.get().is_none() {
            return self.store.apply_batch(batch).await;
        }
        futures_util::future::join_all(batch.into_iter().map(|command| self.apply(command))).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }

    fn max_call_duration(&self) -> Option<Duration> {
        self.store.max_call_duration()
    }

    fn for_renewals(&self) -> Self {
        Self { store: self.store.for_renewals(), ..self.clone() }
    }
}
