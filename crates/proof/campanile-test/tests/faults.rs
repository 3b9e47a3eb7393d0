//! The faulty store has the injected faults and no others.

#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::time::Duration;

use campanile_core::{
    Command, FencingToken, IdempotencyKey, Operation, Owner, Reply, Retention, StoreKey,
};
use campanile_idempotency::{MemoryStore, Store, StoreErrorKind};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::{Instant, timeout};

fn store() -> FaultyStore<MemoryStore> {
    FaultyStore::new(MemoryStore::with_clock(TestClock::new().store_clock()))
}

fn key(name: &str) -> StoreKey {
    let key = IdempotencyKey::new(name.to_owned()).unwrap();
    StoreKey::new("faults".try_into().unwrap(), &key)
}

fn acquire(name: &str) -> Command {
    Command {
        key: key(name),
        operation: Operation::Acquire {
            owner: Owner::new(7).unwrap(),
            ttl: Duration::from_secs(30),
            max_attempts: 3,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        },
        retention: Retention::default(),
    }
}

fn cancel(name: &str) -> Command {
    Command { operation: Operation::Cancel { owner: Owner::new(7).unwrap() }, ..acquire(name) }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn store_without_faults_forwards_calls() {
    let store = store();
    let answer = store.apply(acquire("a")).await.unwrap();
    assert!(matches!(answer.reply, Reply::Acquired { attempt: 1, .. }));
    let answers = store.apply_batch(vec![acquire("b"), cancel("a")]).await;
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[1].as_ref().unwrap().reply, Reply::Released);
    assert_eq!(store.count("acquire"), 2);
    let calls = store.calls();
    assert_eq!(calls[1].commands, [acquire("b"), cancel("a")]);
    assert_eq!(calls[1].answers[1].reply, Reply::Released);
    assert_eq!(calls[0].fault, None);
}

#[tokio::test(start_paused = true)]
async fn lost_reply_is_applied_and_refused_command_is_not() {
    let store = store();
    store.inject_next(Fault::LoseReply);
    store.inject_next(Fault::Refuse);
    let lost = store.apply(acquire("a")).await.unwrap_err();
    assert_eq!(lost.kind(), StoreErrorKind::Unavailable);
    assert!(store.inner().entry(&key("a")).is_some());
    store.apply(acquire("b")).await.unwrap_err();
    assert!(store.inner().entry(&key("b")).is_none());
    store.apply(acquire("b")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nth_call_alone_has_its_fault() {
    let store = store();
    store.inject_nth(3, Fault::Refuse);
    store.inject_nth(1, Fault::LoseReply);
    let mut failed = Vec::new();
    for n in 1..=4 {
        if store.apply(acquire(&format!("{n}"))).await.is_err() {
            failed.push((n, store.calls().last().unwrap().fault));
        }
    }
    assert_eq!(failed, [(1, Some(Fault::LoseReply)), (3, Some(Fault::Refuse))]);
}

#[tokio::test(start_paused = true)]
async fn hanging_call_resumes_on_release() {
    let store = store();
    for (fault, applied) in [(Fault::Hang, false), (Fault::HangReply, true)] {
        let name = format!("{fault:?}");
        store.inject_next(fault);
        let mut call = Box::pin(store.apply(acquire(&name)));
        timeout(MINUTE, call.as_mut()).await.unwrap_err();
        assert_eq!(store.inner().entry(&key(&name)).is_some(), applied);
        store.release();
        let answer = timeout(MINUTE, call).await.unwrap().unwrap();
        assert!(matches!(answer.reply, Reply::Acquired { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_hanging_call_is_never_applied() {
    let store = store();
    store.inject_next(Fault::Hang);
    timeout(MINUTE, store.apply(acquire("a"))).await.unwrap_err();
    store.heal();
    assert!(store.inner().entry(&key("a")).is_none());
}

#[tokio::test(start_paused = true)]
async fn slow_call_is_answered_after_its_delay() {
    let store = store();
    store.inject_next(Fault::Slow(MINUTE));
    let start = Instant::now();
    store.apply(acquire("a")).await.unwrap();
    assert_eq!(start.elapsed(), MINUTE);
}

#[tokio::test(start_paused = true)]
async fn answer_faults_change_number_of_batch_answers() {
    let store = store();
    for (fault, expected) in [(Fault::FewerAnswers, 1), (Fault::MoreAnswers, 3)] {
        store.inject_next(fault);
        let batch = vec![acquire("a"), acquire("b")];
        assert_eq!(store.apply_batch(batch).await.len(), expected);
        store.inject_next(fault);
        store.apply(acquire("a")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "injected panic of the store")]
async fn panic_fault_panics() {
    let store = store();
    store.inject_next(Fault::Panic);
    drop(store.apply(acquire("a")).await);
}

#[tokio::test(start_paused = true)]
async fn operation_fault_waits_for_that_operation() {
    let store = store();
    store.inject_next_of("cancel", Fault::Refuse);
    store.apply(acquire("a")).await.unwrap();
    store.apply(cancel("a")).await.unwrap_err();
    store.apply(cancel("a")).await.unwrap();
    store.inject_always_of("cancel", Fault::Refuse);
    store.apply(cancel("a")).await.unwrap_err();
    store.apply(cancel("a")).await.unwrap_err();
    store.apply(acquire("b")).await.unwrap();
    store.heal();
    store.apply(cancel("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn random_faults_repeat_for_same_seed() {
    let outcomes = async |seed| {
        let store = store();
        store.inject_randomly(seed, [(0.3, Fault::LoseReply), (0.3, Fault::Refuse)]);
        for _ in 0..100 {
            drop(store.apply(acquire("a")).await);
        }
        store.calls().into_iter().map(|call| call.fault)
    };
    let one: Vec<_> = outcomes(1).await.collect();
    assert!(one.iter().eq(&outcomes(1).await.collect::<Vec<_>>()));
    assert!(!one.iter().eq(&outcomes(2).await.collect::<Vec<_>>()));
    for fault in [None, Some(Fault::LoseReply), Some(Fault::Refuse)] {
        assert!(one.contains(&fault), "no {fault:?} in a hundred");
    }
}

#[tokio::test(start_paused = true)]
async fn forgotten_calls_do_not_mix_with_later_calls() {
    let store = store();
    store.inject_next(Fault::HangReply);
    let mut call = Box::pin(store.apply(acquire("a")));
    timeout(MINUTE, call.as_mut()).await.unwrap_err();
    store.forget_calls();
    store.apply(cancel("b")).await.unwrap();
    store.release();
    call.await.unwrap();
    assert_eq!(store.calls().len(), 1);
    assert_eq!(store.commands(), [cancel("b")]);
}
