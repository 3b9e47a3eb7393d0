//! The operations that the store applied to each key, in order.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, FencingToken, Operation, Owner, Reply, StoreKey};
use campanile_idempotency::{MemoryStore, Store, StoreError};

/// The operations that the store applied.
#[derive(Clone, Debug, Default)]
pub struct Operations(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<StoreKey, Vec<Applied>>,
    hasher: DefaultHasher,
}

type Applied = (Operation, Reply);

impl State {
    fn applied(&self, key: &StoreKey) -> &[Applied] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }
}

impl Operations {
    /// Records an operation that the store applied at this time.
    pub fn record(&self, key: &StoreKey, now: SystemTime, operation: &Operation, reply: &Reply) {
        let mut state = self.state();
        // Without the nonces, which the operating system draws.
        let token = match reply {
            Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } => token.get(),
            _ => 0,
        };
        let event = (key.digest(), now, operation.name(), discriminant(reply), token);
        event.hash(&mut state.hasher);
        state.by_key.entry(key.clone()).or_default().push((operation.clone(), reply.clone()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes all operations, their order and their times.
    pub(super) fn hash(&self) -> u64 {
        self.state().hasher.finish()
    }

    pub(super) fn has_completed(&self, key: &StoreKey, token: FencingToken) -> bool {
        let state = self.state();
        completions(state.applied(key)).any(|completed| completed == token)
    }

    /// Checks whether the handler may run under this grant.
    pub(super) fn has_granted(&self, key: &StoreKey, token: FencingToken) -> bool {
        let state = self.state();
        state.applied(key).iter().any(
            |(_, reply)| matches!(reply, Reply::Acquired { token: granted, .. } if *granted == token),
        )
    }

    pub(super) fn has_rejected(&self, key: &StoreKey) -> bool {
        let state = self.state();
        let given_up = |(_, reply): &(_, Reply)| *reply == Reply::GivenUp;
        state.applied(key).iter().any(given_up)
    }

    pub(super) fn assert_consistent(&self, max_attempts: u16) {
        for history in self.state().by_key.values() {
            let mut last: Option<(FencingToken, Owner)> = None;
            let mut ended = false;
            for (operation, reply) in history {
                match (operation, reply) {
                    (
                        Operation::Acquire { owner, .. },
                        Reply::Acquired { token, attempt, .. }
                        | Reply::Exhausted { token, attempt, .. },
                    ) => {
                        assert!(!ended, "granted after the end: {history:#?}");
                        assert!(*attempt <= max_attempts, "{history:#?}");
                        if last != Some((*token, *owner)) {
                            let increases = last.is_none_or(|(last, _)| *token > last);
                            assert!(increases, "{history:#?}");
                        }
                        last = Some((*token, *owner));
                    }
                    (_, Reply::Completed | Reply::GivenUp) => ended = true,
                    _ => {}
                }
            }
            let completed: HashSet<_> = completions(history).collect();
            assert!(completed.len() <= 1, "completed more than once: {history:#?}");
        }
    }
}

fn completions(history: &[Applied]) -> impl Iterator<Item = FencingToken> {
    history.iter().filter_map(|it| match it {
        (Operation::Complete { grant, .. }, Reply::Completed) => Some(grant.token),
        _ => None,
    })
}

/// A memory store that records its operations.
#[derive(Clone, Debug)]
pub struct RecordingStore {
    pub(super) memory: MemoryStore,
    pub(super) operations: Operations,
}

impl Store for RecordingStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let answer = self.memory.apply(command.clone()).await?;
        self.operations.record(&command.key, answer.now, &command.operation, &answer.reply);
        Ok(answer)
    }
}

/// A keeper's connection to its store, with at most one command per key in flight.
#[derive(Clone)]
pub(super) struct ExclusiveCommands<S> {
    pub(super) store: S,
    pub(super) in_flight: Arc<Mutex<HashSet<StoreKey>>>,
}

impl<S: Store> ExclusiveCommands<S> {
    fn send(&self, commands: &[Command]) -> InFlightGuard<'_> {
        let keys: Vec<_> = commands.iter().map(|command| command.key.clone()).collect();
        for key in &keys {
            let alone = self.in_flight.lock().unwrap().insert(key.clone());
            // The keeper would catch a panic, so that it would go unnoticed.
            if !alone {
                eprintln!("two commands for one key in flight: {commands:#?}");
                std::process::abort();
            }
        }
        InFlightGuard(&self.in_flight, keys)
    }
}

/// Keeps the keys in flight until the call ends or is dropped.
struct InFlightGuard<'a>(&'a Mutex<HashSet<StoreKey>>, Vec<StoreKey>);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.0.lock().unwrap();
        for key in &self.1 {
            in_flight.remove(key);
        }
    }
}

impl<S: Store> Store for ExclusiveCommands<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let _sent = self.send(std::slice::from_ref(&command));
        self.store.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let _sent = self.send(&batch);
        self.store.apply_batch(batch).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }

    fn max_call_duration(&self) -> Option<Duration> {
        self.store.max_call_duration()
    }

    fn for_renewals(&self) -> Self {
        Self { store: self.store.for_renewals(), in_flight: self.in_flight.clone() }
    }
}
