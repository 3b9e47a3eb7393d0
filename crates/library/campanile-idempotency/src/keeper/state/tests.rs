//! Transitions of the state: commands, queues and timers, without a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use campanile_core::{Command, IdempotencyKey, Operation, Retention};
use futures_util::future::AbortHandle;
use smallvec::smallvec;

use super::*;
use crate::keeper::calls::Batch;
use crate::keeper::deferred::Deferred;
use crate::keeper::request::{AcquireRequest, Acquisition, LockKey, LockSettings, Settlement};
use crate::keeper::shared::StartCall;
use crate::keeper::slot::new_nonce;
use crate::keeper::steps::{RecordError, StepResult};
use crate::telemetry::LayerMetrics;

const TTL: Duration = Duration::from_secs(30);

/// A state, and the clock of its keeper.
struct Keeper {
    state: KeeperState,
    millis: Arc<AtomicU64>,
    settings: Arc<LockSettings>,
}

impl Keeper {
    fn new(max_batch: usize) -> Self {
        Self::with_ttl(max_batch, TTL)
    }

    fn with_ttl(max_batch: usize, ttl: Duration) -> Self {
        let millis = Arc::new(AtomicU64::new(0));
        let time = millis.clone();
        let clock = Clock::from_fn(move || Duration::from_millis(time.load(Ordering::Relaxed)));
        let settings = LockSettings {
            ttl,
            max_attempts: 1,
            max_hold: Duration::from_secs(600),
            retention: Retention::default(),
            store_keys: true,
            store_errors: true,
            keep_details: false,
            derivation_secret: None,
            metrics: LayerMetrics::new(&"payments".try_into().unwrap()),
        };
        Self { state: KeeperState::new(clock, max_batch), millis, settings: Arc::new(settings) }
    }

    fn set_millis(&self, millis: u64) {
        self.millis.store(millis, Ordering::Relaxed);
    }

    fn acquire(&mut self, number: u64) -> oneshot::Receiver<Acquisition> {
        let key = IdempotencyKey::new(number.to_string()).unwrap();
        let key = LockKey::new("payments".try_into().unwrap(), key);
        let (reply, receiver) = oneshot::channel();
        let (owner, settings) = (new_nonce(), self.settings.clone());
        self.state.acquire(AcquireRequest {
            key,
            owner,
            settings,
            fingerprint: None,
            details: Details::builder(owner).build(),
            interrupt: None,
            reply,
        });
        receiver
    }

    /// Sends an acquire that is not answered yet.
    fn pending_acquire(&mut self, number: u64) -> (CallId, oneshot::Receiver<Acquisition>) {
        let receiver = self.acquire(number);
        let id = self.call().id;
        self.state.set_call_pending(id, AbortHandle::new_pair().0);
        (id, receiver)
    }

    /// Takes the call that starts on the caller's runtime.
    fn call(&mut self) -> Batch {
        match self.state.take_effects().start {
            Some(StartCall::Call(batch)) => batch,
            start => panic!("{start:?}"),
        }
    }

    /// Takes the only call that starts in the background.
    fn background_call(&mut self) -> Batch {
        let mut batches = self.state.take_background_work().batches;
        assert_eq!(batches.len(), 1);
        batches.pop().unwrap().0
    }

    fn answer(&mut self, id: CallId, answer: Result<Reply, StoreError>) {
        let answer = answer.map(|reply| Answer::new(SystemTime::UNIX_EPOCH, reply));
        self.state.handle_answers(id, Ok(smallvec![answer]));
    }

    /// Answers the call started by a change, and checks whether the change woke the background.
    fn answer_call(&mut self, reply: Reply) -> bool {
        let Effects { start, wake, .. } = self.state.take_effects();
        let Some(StartCall::Call(batch)) = start else {
            panic!("{start:?}");
        };
        assert_eq!(batch.commands.len(), 1);
        self.answer(batch.id, Ok(reply));
        wake | self.state.take_effects().wake
    }

    fn grant(&mut self, number: u64) -> usize {
        let _receiver = self.acquire(number);
        let id = self.call().id;
        let token = FencingToken::new(number + 1).unwrap();
        self.answer(id, Ok(Reply::Acquired { token, attempt: 1, steps: None }));
        self.state.by_key.values().copied().next().unwrap()
    }

    /// Grants a lock, and takes its first renewal, when it is due.
    fn renewal(&mut self) -> (usize, Batch) {
        let slot = self.grant(0);
        let due = self.state.next_wake().as_nanos().div_ceil(1_000_000) as u64;
        self.set_millis(due);
        let batch = self.background_call();
        assert!(matches!(batch.commands[0].operation, Operation::Renew { .. }));
        (slot, batch)
    }

    /// Records a step under the lock of this slot.
    fn record_step(&mut self, slot: usize) -> oneshot::Receiver<StepResult> {
        let (reply, receiver) = oneshot::channel();
        let (key, grant) = (self.state.slots[slot].key.store_key.clone(), self.held(slot).grant);
        self.state.record_step((&key, grant), "charge".into(), Bytes::new(), reply);
        receiver
    }

    fn held(&self, slot: usize) -> &HeldGrant {
        match &self.state.slots[slot].phase {
            Phase::Held(held) => held,
            phase => panic!("{phase:?}"),
        }
    }

    /// The time until the next timer.
    fn next_timer(&self) -> Duration {
        self.state.next_wake() - self.state.clock.now()
    }
}

fn lost() -> StoreError {
    StoreError::timeout("lost")
}

#[test]
fn background_is_not_woken_for_each_record() {
    let mut keeper = Keeper::new(1);
    let mut woken = 0;
    for number in 0..4_000_u64 {
        keeper.set_millis(number);
        let _receiver = keeper.acquire(number);
        let token = FencingToken::new(number + 1).unwrap();
        woken += u64::from(keeper.answer_call(Reply::Acquired { token, attempt: 1, steps: None }));
        let slot = keeper.state.by_key.values().copied().next().unwrap();
        keeper.state.settle(slot, Settlement::Complete { reply: None }, None);
        woken += u64::from(keeper.answer_call(Reply::Completed));
    }
    assert_eq!(woken, 1, "woken only for the time limit of the first call, the earliest timer");
    assert!(keeper.state.slots.is_empty() && keeper.state.calls.is_empty());
}

#[test]
fn cancel_is_repeated_in_the_background_with_growing_delays() {
    let mut keeper = Keeper::new(1);
    let _receiver = keeper.acquire(0);
    let id = keeper.call().id;
    keeper.answer(id, Err(lost()));
    let mut millis = 0;
    for delay in [50, 100, 200, 400, 800, 1600, 1600] {
        let batch = keeper.background_call();
        assert!(matches!(batch.commands[0].operation, Operation::Cancel { .. }));
        keeper.answer(batch.id, Err(lost()));
        assert_eq!(keeper.next_timer(), Duration::from_millis(delay));
        millis += delay;
        keeper.set_millis(millis);
    }
    // An answer that no repetition would change ends it.
    let id = keeper.background_call().id;
    keeper.answer(id, Err(StoreError::unreadable("garbage")));
    assert!(keeper.state.slots.is_empty() && keeper.state.in_doubt == 0);
}

#[test]
fn cancel_is_not_repeated_after_a_minute() {
    for (millis, is_repeated) in [(59_999, true), (60_000, false)] {
        let mut keeper = Keeper::new(1);
        let _receiver = keeper.acquire(0);
        let id = keeper.call().id;
        keeper.answer(id, Err(lost()));
        let id = keeper.background_call().id;
        keeper.set_millis(millis);
        keeper.answer(id, Err(lost()));
        assert_eq!(!keeper.state.slots.is_empty(), is_repeated, "after {millis} ms");
    }
}

#[test]
fn request_dropped_while_it_waits_for_a_cancel_is_not_sent() {
    let mut keeper = Keeper::new(1);
    let _receiver = keeper.acquire(0);
    let id = keeper.call().id;
    keeper.answer(id, Err(lost()));
    let cancel = keeper.background_call();
    drop(keeper.acquire(0));
    keeper.answer(cancel.id, Ok(Reply::Released));
    assert!(keeper.state.take_effects().start.is_none());
    assert!(keeper.state.slots.is_empty());
}

#[test]
fn settlement_is_repeated_in_the_background() {
    let mut keeper = Keeper::new(1);
    let slot = keeper.grant(0);
    keeper.state.settle(slot, Settlement::Complete { reply: None }, None);
    let id = keeper.call().id;
    keeper.answer(id, Err(lost()));
    assert_eq!(keeper.next_timer(), Duration::from_millis(50));
    keeper.set_millis(50);
    let batch = keeper.background_call();
    assert!(matches!(batch.commands[0].operation, Operation::Complete { .. }));
}

#[test]
fn settlement_is_repeated_at_least_six_times_per_ttl() {
    let mut keeper = Keeper::with_ttl(1, Duration::from_millis(600));
    let slot = keeper.grant(0);
    keeper.state.settle(slot, Settlement::Complete { reply: None }, None);
    let mut id = keeper.call().id;
    let mut millis = 0;
    for delay in [50, 100, 100] {
        keeper.answer(id, Err(lost()));
        assert_eq!(keeper.next_timer(), Duration::from_millis(delay));
        assert_eq!(keeper.state.in_doubt, 1);
        millis += delay;
        keeper.set_millis(millis);
        id = keeper.background_call().id;
    }
    keeper.answer(id, Ok(Reply::Completed));
    assert!(keeper.state.slots.is_empty() && keeper.state.in_doubt == 0);
}

#[test]
fn step_is_repeated_in_the_background() {
    let mut keeper = Keeper::new(1);
    let slot = keeper.grant(0);
    let _receiver = keeper.record_step(slot);
    let first = keeper.call();
    assert!(matches!(first.commands[0].operation, Operation::RecordStep { .. }));
    keeper.answer(first.id, Err(lost()));
    assert_eq!(keeper.next_timer(), Duration::from_millis(50));
    keeper.set_millis(50);
    let batch = keeper.background_call();
    assert!(matches!(batch.commands[0].operation, Operation::RecordStep { .. }));
}

#[test]
fn step_is_not_repeated_after_a_final_error() {
    let mut keeper = Keeper::new(1);
    let slot = keeper.grant(0);
    let _receiver = keeper.record_step(slot);
    let id = keeper.call().id;
    keeper.answer(id, Err(StoreError::unreadable("garbage")));
    assert!(keeper.held(slot).steps.front().is_none());
    let deferred = keeper.state.take_effects().deferred;
    assert!(
        matches!(&*deferred, [Deferred::SendStepResult(_, Err(RecordError::Store(_)))]),
        "{deferred:?}"
    );
}

#[test]
fn queued_step_of_a_lost_lock_is_not_sent() {
    let mut keeper = Keeper::new(1);
    let slot = keeper.grant(0);
    let in_flight = [1, 2, 3, 4].map(|number| keeper.pending_acquire(number));
    let _receiver = keeper.record_step(slot);
    assert!(keeper.state.take_effects().start.is_none(), "four calls are in flight");
    keeper.held(slot).control.lose(LostCause::MaxHold);
    keeper.answer(in_flight[0].0, Ok(Reply::Mismatch));
    assert!(keeper.state.take_effects().start.is_none());
    assert!(keeper.state.slots.contains(slot), "its slot is kept until its holder ends");
}

#[test]
fn call_that_its_runtime_dropped_wakes_the_background() {
    let mut keeper = Keeper::new(8);
    let _receiver = keeper.acquire(0);
    let Some(StartCall::Gather(id)) = keeper.state.take_effects().start else {
        panic!("a single command waits for others");
    };
    keeper.state.requeue_dropped_call(id);
    assert!(keeper.state.take_effects().wake);
    assert_eq!(keeper.background_call().commands.len(), 1);
}

#[test]
fn background_takes_over_behind_an_overdue_call() {
    let mut keeper = Keeper::new(1);
    let _in_flight = [0, 1, 2, 3].map(|number| keeper.pending_acquire(number));
    let _receiver = keeper.acquire(4);
    assert!(keeper.state.take_effects().start.is_none(), "four calls are in flight");
    keeper.set_millis(5_000);
    assert!(keeper.state.take_background_work().batches.is_empty(), "the calls end first");
    assert!(keeper.state.calls.is_empty() && keeper.state.queues.callers.is_empty());
    let commands = keeper.state.take_background_work().batches.into_iter();
    let commands: Vec<_> = commands.flat_map(|(batch, _)| batch.commands).collect();
    let is_acquire = |command: &&Command| matches!(command.operation, Operation::Acquire { .. });
    assert_eq!(commands.iter().filter(is_acquire).count(), 1);
}

#[test]
fn batch_has_at_most_as_many_commands_as_the_store_takes() {
    let mut keeper = Keeper::new(2);
    let _receivers: Vec<_> = (0..5).map(|number| keeper.acquire(number)).collect();
    let mut lengths = Vec::new();
    while let Some(start) = keeper.state.take_effects().start {
        match start {
            StartCall::Call(batch) => lengths.push(batch.commands.len()),
            StartCall::Gather(id) => {
                let abort = AbortHandle::new_pair().0;
                let batch = keeper.state.take_gathered_batch(id, abort).unwrap();
                lengths.push(batch.commands.len());
            }
        }
    }
    assert_eq!(lengths, [2, 2, 1]);
}

#[test]
fn suspended_process_has_time_to_read_its_answers() {
    for (millis, grace) in [(5_100, None), (5_101, Some(100)), (60_000, Some(100))] {
        let mut keeper = Keeper::new(1);
        let _receiver = keeper.acquire(0);
        let _batch = keeper.call();
        keeper.set_millis(millis);
        drop(keeper.state.take_background_work());
        let is_in_flight = !keeper.state.calls.is_empty();
        assert_eq!(is_in_flight, grace.is_some(), "{millis} ms after a limit of 5 s");
        if let Some(grace) = grace {
            assert_eq!(keeper.next_timer(), Duration::from_millis(grace));
        }
    }
}

#[test]
fn lock_that_expires_ends_with_the_answer_to_its_renewal() {
    let mut keeper = Keeper::new(1);
    let (slot, renewal) = keeper.renewal();
    keeper.state.settle(slot, Settlement::Expire, None);
    assert_eq!(keeper.state.slots.len(), 1, "its renewal is not answered");
    keeper.answer(renewal.id, Ok(Reply::Renewed));
    assert!(keeper.state.slots.is_empty());
}

#[test]
fn lock_that_expires_ends_with_the_answer_to_its_step() {
    let mut keeper = Keeper::new(1);
    let slot = keeper.grant(0);
    let _receiver = keeper.record_step(slot);
    let step = keeper.call();
    keeper.state.settle(slot, Settlement::Expire, None);
    assert_eq!(keeper.state.slots.len(), 1, "its step is not answered");
    keeper.answer(step.id, Ok(Reply::StepRecorded));
    assert!(keeper.state.slots.is_empty());
}

#[test]
fn renewals_are_due_at_multiples_of_a_24th_of_the_ttl() {
    for millis in 0..100 {
        let mut keeper = Keeper::new(1);
        keeper.set_millis(millis);
        let slot = keeper.grant(0);
        let due = keeper.held(slot).renew_at;
        assert_eq!(due.as_nanos() % (TTL / 24).as_nanos(), 0, "{due:?}");
        let after = due - Duration::from_millis(millis);
        assert!((TTL / 4..=TTL / 3).contains(&after), "after {after:?}");
    }
}

#[test]
fn failed_renewal_is_repeated_after_a_24th_of_the_ttl() {
    for answer in [Ok(Reply::Corrupt), Err(lost())] {
        let mut keeper = Keeper::new(1);
        let (_, renewal) = keeper.renewal();
        keeper.answer(renewal.id, answer);
        assert_eq!(keeper.next_timer(), TTL / 24);
    }
}

#[test]
fn requests_that_are_dropped_unsent_are_removed_when_slots_have_doubled() {
    let mut keeper = Keeper::new(1);
    let _in_flight = keeper.acquire(0);
    let _batch = keeper.call();
    let _kept: Vec<_> = (1..600).map(|number| keeper.acquire(number)).collect();
    let mut lengths = Vec::new();
    for number in 600..=2_000 {
        drop(keeper.acquire(number));
        lengths.push(keeper.state.slots.len());
    }
    let removed = lengths.windows(2).filter(|pair| pair[1] < pair[0]);
    // Each was followed by the slot of the request that had caused it.
    let removed: Vec<_> = removed.map(|pair| (pair[0], pair[1] - 1)).collect();
    assert_eq!(removed, [(1024, 600), (1200, 600)]);
}
