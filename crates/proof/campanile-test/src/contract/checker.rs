//! A client of the store that knows the correct answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{
    Answer, Command, Entry, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner,
    Reply, Retention, StoreKey, error, step,
};
use campanile_idempotency::Store;

use super::Time;

/// The result of a promise. The error describes what was seen instead.
pub(super) type CheckResult<T = ()> = Result<T, String>;

/// Longer than any test takes.
pub(super) const LONG_DURATION: Duration = Duration::from_secs(600);

/// Expires before the next command arrives.
pub(super) const SHORT_DURATION: Duration = Duration::from_millis(1);

/// Applies commands, compares each answer with [`step`], and keeps the expected entries.
pub(super) struct ModelChecker<'a, S, T> {
    pub(super) store: &'a S,
    time: &'a T,
    namespace: Namespace,
    keys: AtomicUsize,
    entries: Mutex<HashMap<StoreKey, Entry>>,
}

impl<'a, S: Store, T: Time> ModelChecker<'a, S, T> {
    pub(super) fn new(store: &'a S, time: &'a T) -> Self {
        let name = format!("contract.{:016x}", fastrand::u64(..));
        Self {
            store,
            time,
            namespace: name.try_into().expect("lower case, digits and a dot"),
            keys: AtomicUsize::new(0),
            entries: Mutex::default(),
        }
    }

    /// Generates a key that has no entry.
    pub(super) fn key(&self) -> StoreKey {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let key = IdempotencyKey::new(format!("key-{number}")).expect("not empty");
        StoreKey::new(self.namespace.clone(), &key)
    }

    pub(super) async fn apply(&self, key: &StoreKey, operation: Operation) -> CheckResult<Answer> {
        let command = self.command(key, operation);
        let answer = self.store.apply(command.clone()).await;
        let answer = answer.map_err(|error| describe_error(&command, &error))?;
        self.compare(&command, &answer)?;
        Ok(answer)
    }

    /// Like several calls of [`apply`](Self::apply), in one batch.
    pub(super) async fn apply_batch(
        &self,
        batch: Vec<(StoreKey, Operation)>,
    ) -> CheckResult<Vec<Answer>> {
        let commands = batch.into_iter();
        let commands: Vec<_> = commands.map(|(key, op)| self.command(&key, op)).collect();
        let answers = self.store.apply_batch(commands.clone()).await;
        if answers.len() != commands.len() {
            let (received, sent) = (answers.len(), commands.len());
            return Err(format!("expected {sent} answers to a batch, got {received}"));
        }
        let mut all = Vec::with_capacity(answers.len());
        for (command, answer) in commands.iter().zip(answers) {
            let answer = answer.map_err(|error| describe_error(command, &error))?;
            self.compare(command, &answer)?;
            all.push(answer);
        }
        Ok(all)
    }

    /// Acquires the key; fails unless the lock is granted.
    pub(super) async fn grant(&self, key: &StoreKey, acquire: Operation) -> CheckResult<Grant> {
        let answer = self.apply(key, acquire.clone()).await?;
        match (acquire, answer.reply) {
            (
                Operation::Acquire { owner, .. },
                Reply::Acquired { token, .. } | Reply::Exhausted { token, .. },
            ) => Ok(Grant { token, owner }),
            (acquire, reply) => Err(format!("{acquire:?}: expected a grant, got {reply:?}")),
        }
    }

    /// Applies the operation; fails unless the reply is `expected`.
    pub(super) async fn expect(
        &self,
        key: &StoreKey,
        operation: Operation,
        expected: Reply,
    ) -> CheckResult {
        let answer = self.apply(key, operation.clone()).await?;
        if answer.reply == expected {
            Ok(())
        } else {
            let reply = answer.reply;
            Err(format!("{operation:?}: expected {expected:?}, got {reply:?}"))
        }
    }

    /// Reads the store's clock.
    pub(super) async fn now(&self) -> CheckResult<SystemTime> {
        let owner = owner();
        Ok(self.apply(&self.key(), Operation::Cancel { owner }).await?.now)
    }

    /// Waits until the store's clock has advanced by `time`.
    pub(super) async fn wait(&self, time: Duration) -> CheckResult {
        const MAX_POLLS: usize = 1000;
        let deadline = self.now().await? + time;
        for _ in 0..MAX_POLLS {
            let now = self.now().await?;
            let Ok(remaining) = deadline.duration_since(now) else {
                return Ok(());
            };
            if remaining.is_zero() {
                return Ok(());
            }
            self.time.pass(remaining).await;
        }
        Err(format!("the store's clock did not advance by {time:?}"))
    }

    pub(super) fn token(&self, key: &StoreKey) -> Option<FencingToken> {
        self.entries().get(key).map(Entry::token)
    }

    pub(super) fn command(&self, key: &StoreKey, operation: Operation) -> Command {
        Command {
            key: key.clone(),
            operation,
            retention: Retention {
                attempts: LONG_DURATION,
                completed: LONG_DURATION,
                failed: LONG_DURATION,
            },
        }
    }

    /// Compares an answer with `step`. For callers that applied the command themselves.
    pub(super) fn compare(&self, command: &Command, answer: &Answer) -> CheckResult {
        let mut entries = self.entries();
        let before = entries.remove(&command.key);
        let (after, reply) = step(before.clone(), &command.operation, answer.now);
        if let Some(after) = after {
            entries.insert(command.key.clone(), after);
        }
        if reply == answer.reply {
            Ok(())
        } else {
            Err(format!(
                "{:?} on {before:?} at {:?}: got {:?}, expected {reply:?}",
                command.operation, answer.now, answer.reply
            ))
        }
    }

    /// Records that the entry of a key is gone.
    pub(super) fn record_absence(&self, key: &StoreKey) {
        self.entries().remove(key);
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<StoreKey, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe_error(command: &Command, error: &(dyn std::error::Error + 'static)) -> String {
    let messages: Vec<String> = error::sources(error).map(ToString::to_string).collect();
    format!("{:?} failed: {}", command.operation, messages.join(": "))
}

/// Generates a new nonce.
pub(super) fn owner() -> Owner {
    Owner::new(fastrand::u64(1..)).expect("not zero")
}

/// Creates an acquire with a new nonce, which leaves attempts for the key.
pub(super) fn acquire(ttl: Duration) -> Operation {
    acquire_as(owner(), ttl)
}

pub(super) fn acquire_as(owner: Owner, ttl: Duration) -> Operation {
    Operation::Acquire {
        owner,
        ttl,
        max_attempts: MAX_ATTEMPTS,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    }
}

/// The attempt limit of the suite's acquires.
pub(super) const MAX_ATTEMPTS: u16 = 3;

pub(super) fn complete(grant: Grant) -> Operation {
    Operation::Complete {
        grant,
        attempt: 1,
        fingerprint: None,
        reply: Some("reply".into()),
        details: None,
    }
}

pub(super) fn fail(grant: Grant, delay: Duration) -> Operation {
    Operation::Fail { grant, delay, last: false, error: "declined".into() }
}

pub(super) fn give_up(grant: Grant) -> Operation {
    Operation::GiveUp { grant, reason: "dead letter published".into() }
}

pub(super) fn record_step(grant: Grant, name: &str, result: &'static [u8]) -> Operation {
    Operation::RecordStep { grant, name: name.into(), result: Bytes::from_static(result) }
}

pub(super) fn redrive(token: FencingToken, force: bool) -> Operation {
    Operation::Redrive { token, force }
}
