//! Bugs of a keeper that tests plant, to verify that the simulation finds them.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{Answer, Command, Grant, Operation, Owner, Reply, StoreKey};
use campanile_idempotency::{Store, StoreError};

use super::StoreClock;

/// A bug of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperBug {
    /// An acquire without an answer is repeated with another nonce.
    RepeatedWithFreshNonce,
    /// An acquire without an answer is not cancelled.
    CancelNotSent,
    /// No lock is renewed.
    RenewalNotSent,
    /// A renewal without an answer counts as one that was confirmed.
    RenewalResultIgnored,
    /// A completion without an answer is not repeated.
    CompletionNotRepeated,
    /// A step without an answer counts as recorded.
    StepNotRepeated,
    /// A command without an answer counts as one that was not sent.
    FailureNotSent,
}

/// A store as the keeper sees it: with a bug of the keeper, if one is planted.
#[derive(Clone, Debug)]
pub struct BuggyKeeper<S> {
    store: S,
    clock: StoreClock,
    bug: Option<KeeperBug>,
    /// The nonces that replace those of the keeper.
    fresh_nonces: Arc<Mutex<HashMap<(StoreKey, Owner), Owner>>>,
}

impl<S: Store> BuggyKeeper<S> {
    /// Wraps the store.
    pub fn new(store: S, clock: StoreClock, bug: Option<KeeperBug>) -> Self {
        Self { store, clock, bug, fresh_nonces: Arc::default() }
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
            | Operation::RecordStep { grant, .. }
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

impl<S: Store> Store for BuggyKeeper<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        match (self.bug, &command.operation) {
            (Some(KeeperBug::RepeatedWithFreshNonce), _) => self.with_fresh_nonce(command).await,
            (Some(KeeperBug::CancelNotSent), Operation::Cancel { .. }) => {
                self.assumed(Reply::Released)
            }
            (Some(KeeperBug::RenewalNotSent), Operation::Renew { .. }) => {
                Err(StoreError::unavailable("not sent"))
            }
            (Some(KeeperBug::RenewalResultIgnored), Operation::Renew { .. }) => {
                let answer = self.store.apply(command).await;
                answer.or_else(|_| self.assumed(Reply::Renewed))
            }
            (Some(KeeperBug::CompletionNotRepeated), Operation::Complete { .. }) => {
                let answer = self.store.apply(command).await;
                answer.or_else(|_| self.assumed(Reply::Completed))
            }
            (Some(KeeperBug::StepNotRepeated), Operation::RecordStep { .. }) => {
                let answer = self.store.apply(command).await;
                answer.or_else(|_| self.assumed(Reply::StepRecorded))
            }
            (Some(KeeperBug::FailureNotSent), _) => {
                self.store.apply(command).await.map_err(StoreError::not_sent)
            }
            _ => self.store.apply(command).await,
        }
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        if self.bug.is_none() {
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
