//! Bugs around `step`: retention, atomicity and batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{Answer, Command, Entry, Operation, Owner, Reply, StoreKey, step};
use campanile_idempotency::{MemoryStore, Store, StoreError};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};

use super::{DIFFERENTIAL, assert_violates};

#[tokio::test(start_paused = true)]
async fn ignoring_retention_is_detected() {
    let clock = TestClock::new();
    let store = LongLived(MemoryStore::with_clock(clock.store_clock()));
    assert_violates(&store, &clock, &["an_entry_lives_as_long_as_it_is_retained"]).await;
}

/// Ignores the retention of the command.
#[derive(Clone)]
struct LongLived(MemoryStore);

impl Store for LongLived {
    async fn apply(&self, mut command: Command) -> Result<Answer, StoreError> {
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        command.retention.completed = year;
        command.retention.attempts = year;
        command.retention.failed = year;
        self.0.apply(command).await
    }
}

#[tokio::test(start_paused = true)]
async fn non_atomic_apply_is_detected() {
    let clock = TestClock::new();
    let store = NotAtomic { clock: clock.clone(), entries: Arc::default() };
    assert_violates(
        &store,
        &clock,
        &[
            "of_many_who_acquire_at_once_one_is_granted",
            "of_completion_and_failure_at_once_one_wins",
        ],
    )
    .await;
}

/// Reads, yields to other tasks, and then overwrites their changes.
#[derive(Clone)]
struct NotAtomic {
    clock: TestClock,
    entries: Arc<Mutex<HashMap<StoreKey, Entry>>>,
}

impl Store for NotAtomic {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let before = self.entries.lock().unwrap().get(&command.key).cloned();
        tokio::task::yield_now().await;
        let now = self.clock.now();
        let (after, reply) = step(before, &command.operation, now);
        if let Some(entry) = after {
            self.entries.lock().unwrap().insert(command.key, entry);
        }
        Ok(Answer::new(now, reply))
    }
}

#[tokio::test(start_paused = true)]
async fn reordered_batch_answers_are_detected() {
    let clock = TestClock::new();
    let store = Reversed(MemoryStore::with_clock(clock.store_clock()));
    assert_violates(&store, &clock, &["a_batch_is_answered_in_its_order", DIFFERENTIAL]).await;
}

#[derive(Clone)]
struct Reversed(MemoryStore);

impl Store for Reversed {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let mut answers = self.0.apply_batch(batch).await;
        answers.reverse();
        answers
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_number_of_batch_answers_is_detected() {
    for fault in [Fault::FewerAnswers, Fault::MoreAnswers] {
        let clock = TestClock::new();
        let store = FaultyStore::new(MemoryStore::with_clock(clock.store_clock()));
        store.inject_always(fault);
        assert_violates(&store, &clock, &["a_full_batch_is_answered_in_full"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_a_batch_at_a_refusal_is_detected() {
    let clock = TestClock::new();
    let store = Transaction(MemoryStore::with_clock(clock.store_clock()));
    assert_violates(&store, &clock, &["one_keys_refusal_does_not_touch_its_neighbours"]).await;
}

/// Applies no command after the first one that was refused.
#[derive(Clone)]
struct Transaction(MemoryStore);

impl Store for Transaction {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.0.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let mut answers = Vec::new();
        let mut refused = false;
        for mut command in batch {
            if refused {
                let owner = Owner::new(1).unwrap();
                command.operation = Operation::Cancel { owner };
            }
            let answer = self.0.apply(command).await;
            refused |= matches!(
                answer,
                Ok(Answer { reply: Reply::Lost | Reply::Corrupt | Reply::Mismatch, .. })
            );
            answers.push(answer);
        }
        answers
    }
}
