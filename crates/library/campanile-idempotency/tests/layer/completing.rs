//! How a grant ends in the store: once, whatever happens to the command and its reply.

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{
    Answer, BoxError, Command, LostCause, Operation, Outcome, Reply, Request, State,
};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{
    IdempotencyConfig, IdempotencyError, LockKeeper, MemoryStore, Runner, Store, StoreError,
    StoreErrorKind, reply,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{
    HOUR, Harness, TTL, TestService, failed, failing_service, fingerprint_layer, is_pending,
    layer_error, layer_of, lock, request, request_with_payload, run_until_idle, store_key,
};

#[tokio::test(start_paused = true)]
async fn outcome_is_returned_after_store_has_recorded_it() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_next_of("complete", Fault::HangReply);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(harness.state("p-1"), Some(State::Completed));
    harness.store.release();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn completion_is_repeated_until_answered_and_counts_once() {
    let faults = [Fault::LoseReply, Fault::Refuse, Fault::Hang, Fault::HangReply, Fault::Panic];
    for fault in faults {
        let harness = Harness::new();
        let service = harness.layer().with_reply(reply::json());
        let service = service
            .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
        for _ in 0..3 {
            harness.store.inject_next_of("complete", fault);
        }
        let outcome = service.run("p-1").await.unwrap();
        assert_eq!(outcome, Outcome::Processed("receipt".into()), "{fault:?}");
        assert_eq!(harness.store.count("complete"), 4);
        let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
            panic!("expected a duplicate");
        };
        assert_eq!((duplicate.attempts, duplicate.reply.as_deref()), (1, Some("receipt")));
        harness.assert_settled().await;
    }
}

/// The effect has happened, so it must not run again because its completion is late.
#[tokio::test(start_paused = true)]
async fn repeated_completion_keeps_key_from_other_processes() {
    for ttl in [Duration::from_millis(500), Duration::from_secs(2), TTL] {
        let harness = Harness::new();
        let layer = harness.layer_with(|config| config.with_lock_ttl(ttl));
        let (service, mut handle) = harness.mock_service(layer);
        let call = service.start(request("p-1"));
        let (_, respond) = handle.next_request().await.unwrap();
        // One call after another is lost, as over a connection that broke silently.
        harness.store.inject_next_of("complete", Fault::Hang);
        harness.store.inject_next_of("complete", Fault::Hang);
        respond.send_response("done");

        let other_process = harness.other_process();
        let other_service = other_process
            .layer()
            .layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("ran again".into())));
        while !call.is_finished() {
            if let Err(error) = &other_service.run("p-1").await {
                let error = IdempotencyError::find(&**error).unwrap();
                assert!(error.is_contention(), "{ttl:?}: {error:?}");
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
        assert!(other_service.run("p-1").await.unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn completion_after_lock_expiration_counts_if_not_superseded() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Refuse);
    respond.send_response("done");
    sleep(TTL * 20).await;
    assert!(is_pending(&call).await);
    harness.store.heal();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert_eq!(harness.state("p-1"), Some(State::Completed));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn completion_after_another_grant_changes_nothing() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Refuse);
    respond.send_response("done");
    sleep(TTL).await;
    let other_process = harness.other_process();
    let (other_service, mut next) = other_process.mock_service(other_process.layer());
    let _next_call = other_service.start(request("p-1"));
    let (taken_over, _respond) = next.next_request().await.unwrap();
    assert_eq!(lock(&taken_over).attempt(), 2);

    let before = harness.entry("p-1");
    harness.store.heal();
    let result = call.await.unwrap();
    let IdempotencyError::LockLost(lost) = layer_error(&result) else {
        panic!("expected a lost lock");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(harness.entry("p-1"), before);
    assert!(lock(&taken_over).check().is_ok());
    harness.assert_settled().await;
}

/// The store has lost the entry, so only this process knows what the handler did.
#[tokio::test(start_paused = true)]
async fn completion_recreates_missing_entry() {
    let harness = Harness::new();
    let layer = fingerprint_layer(&harness).on_lost(OnLost::Notify);
    let clock = harness.clock.clone();
    let service = layer.layer(service_fn(move |_: Request<()>| {
        clock.advance(Duration::from_secs(8 * 24 * 60 * 60));
        ready(Ok::<_, BoxError>("done"))
    }));
    let outcome = service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Processed("done"));
    assert_eq!(harness.state("p-1"), Some(State::Completed));
    assert!(
        service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap().is_duplicate()
    );
    let result = service.start(request_with_payload("p-1", "999")).await.unwrap();
    assert!(matches!(layer_error(&result), IdempotencyError::Mismatch { .. }));
}

#[tokio::test(start_paused = true)]
async fn failure_is_repeated_until_answered_and_counts_once() {
    for fault in [Fault::LoseReply, Fault::Refuse, Fault::HangReply] {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer());
        let call = service.start(request("p-1"));
        let (_, respond) = handle.next_request().await.unwrap();
        harness.store.inject_next_of("fail", fault);
        respond.send_error("gateway busy");
        let result = call.await.unwrap();
        let IdempotencyError::AttemptFailed(failed) = layer_error(&result) else {
            panic!("expected a failed attempt");
        };
        let entry = harness.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt(), failed.attempt), (State::Retrying, 1, 1));
        assert_eq!(entry.error().as_deref(), Some("gateway busy"));
        assert_eq!(harness.store.count("fail"), 2);
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn handler_error_is_returned_if_it_cannot_be_recorded() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.take_over("p-1").await;
    respond.send_error("gateway busy");
    let result = call.await.unwrap();
    let IdempotencyError::AttemptFailed(failed) = layer_error(&result) else {
        panic!("expected a failed attempt");
    };
    assert_eq!(failed.source.to_string(), "gateway busy");
    assert_eq!(harness.state("p-1"), Some(State::Processing), "held by the new owner");
}

#[tokio::test(start_paused = true)]
async fn completion_takes_effect_if_its_future_is_dropped() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Refuse);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    call.abort();
    sleep(TTL / 2).await;
    harness.store.heal();
    harness.assert_settled().await;
    assert_eq!(harness.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_store_ends_in_time() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always(Fault::Hang);
    respond.send_response("done");
    run_until_idle().await;
    let before = harness.clock.elapsed();
    let time_limit = Duration::from_secs(3);
    assert!(!harness.keeper.shutdown(time_limit).await.settled);
    assert_eq!(harness.clock.elapsed() - before, time_limit);
    assert!(is_pending(&call).await);
}

/// This is why the keeper does not renew all locks at once when it notices the loss: their handlers
/// would be cancelled and run again.
#[tokio::test(start_paused = true)]
async fn short_handlers_do_not_run_again_after_store_loses_its_data() {
    let clock = TestClock::new();
    let memory = || MemoryStore::with_clock(clock.store_clock());
    let store = RestartableStore(Arc::new(Mutex::new(memory())));
    let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
    tokio::spawn(task);
    let runner = Runner::new(&keeper, "payments").unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let run = |id: u64, duration: Duration| {
        let (runner, runs) = (runner.clone(), runs.clone());
        let work = async move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            sleep(duration).await;
            Ok::<_, BoxError>(())
        };
        tokio::spawn(async move { runner.run(id, work).await })
    };
    let short: Vec<_> = (0..100).map(|id| run(id, TTL / 6)).collect();
    let long = run(100, TTL);
    run_until_idle().await;
    *store.0.lock().unwrap() = memory();
    for call in short {
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed(()));
    }
    for id in 0..100 {
        assert!(run(id, TTL).await.unwrap().unwrap().is_duplicate());
    }
    assert_eq!(runs.load(Ordering::Relaxed), 101);
    let result = long.await.unwrap();
    assert!(matches!(layer_error(&result), IdempotencyError::LockLost(_)), "{result:?}");
    assert!(clock.elapsed() <= TTL / 3, "lost with its next renewal");
}

/// A store that can lose its entries.
#[derive(Clone)]
struct RestartableStore(Arc<Mutex<MemoryStore>>);

impl Store for RestartableStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let store = self.0.lock().unwrap().clone();
        store.apply(command).await
    }
}

/// No request waits for the keeper any more, and none can reach it, but it still has a completion
/// to record.
#[tokio::test(start_paused = true)]
async fn keeper_without_handles_settles_locks_and_ends() {
    for recovers in [true, false] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = FaultyStore::new(memory.clone());
        let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
        let task = tokio::spawn(task);
        let runner = Runner::new(&keeper, "payments").unwrap();
        drop(keeper);
        store.inject_always_of("complete", Fault::Refuse);
        let run = async move { runner.run("p-1", async |_| Ok::<_, BoxError>(())).await };
        let call = tokio::spawn(run);
        run_until_idle().await;
        call.abort();
        drop(call.await);
        assert!(!task.is_finished());
        if recovers {
            store.heal();
        }
        tokio::time::timeout(HOUR, task).await.unwrap().unwrap();
        let expected = if recovers { State::Completed } else { State::Processing };
        assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn keeper_without_handles_and_locks_ends_at_once() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.store_clock());
    let (keeper, task) = LockKeeper::pair(store, clock.keeper_clock());
    let task = tokio::spawn(task);
    sleep(HOUR).await;
    let other = keeper.clone();
    drop(keeper);
    run_until_idle().await;
    assert!(!task.is_finished());
    drop(other);
    run_until_idle().await;
    assert!(task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn grant_without_receiver_is_released() {
    let clock = TestClock::new();
    let memory = MemoryStore::with_clock(clock.store_clock());
    let store = FaultyStore::new(memory.clone());
    let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
    let task = tokio::spawn(task);
    store.inject_next_of("acquire", Fault::HangReply);
    let runner = Runner::new(keeper, "payments").unwrap();
    let run = async move { runner.run("p-1", async |_| Ok::<_, BoxError>(())).await };
    let call = tokio::spawn(run);
    run_until_idle().await;
    call.abort(); // drops the last handle
    run_until_idle().await;
    assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), State::Processing);
    store.release();
    task.await.unwrap();
    let entry = memory.entry(&store_key("p-1")).unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

/// Its command has no runtime, so the background sends it, and does not wait for a time limit first.
#[tokio::test(start_paused = true)]
async fn lock_dropped_outside_of_runtime_is_settled_at_once() {
    for batches in [false, true] {
        let harness = Harness::new();
        let (memory, clock) = (harness.memory.clone(), harness.clock.keeper_clock());
        let (keeper, task) = LockKeeper::pair(memory, clock);
        let _task = tokio::spawn(task);
        let keeper = if batches { &harness.keeper } else { &keeper };
        let layer = layer_of(keeper, IdempotencyConfig::new("payments").with_max_attempts(1));
        let result = failing_service(&layer, || "declined".into()).run("p-1").await;
        let lock = failed(&result).take_lock().unwrap();
        std::thread::spawn(move || drop(lock)).join().unwrap();
        run_until_idle().await;
        assert_eq!(harness.state("p-1"), Some(State::Retrying), "batches: {batches}");
    }
}

/// For example, the entry has another version: a repeat would not change that.
#[tokio::test(start_paused = true)]
async fn completion_of_unreadable_entry_is_not_repeated() {
    let unreadable = StoreError::unreadable("another version");
    let misconfigured = StoreError::misconfigured("another number of buckets");
    for (answer, kind) in [
        (None, StoreErrorKind::Unreadable),
        (Some(unreadable), StoreErrorKind::Unreadable),
        (Some(misconfigured), StoreErrorKind::Misconfigured),
    ] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = UnreadableStore { memory, answer };
        let (keeper, task) = LockKeeper::pair(store, clock.keeper_clock());
        tokio::spawn(task);
        let runner = Runner::new(&keeper, "payments").unwrap();
        let run = runner.run("p-1", async |_| Ok::<_, BoxError>(()));
        let result = tokio::time::timeout(HOUR, run).await.unwrap();
        let IdempotencyError::Store(error) = layer_error(&result) else {
            panic!("expected a store error");
        };
        assert_eq!(error.kind(), kind);
        assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
    }
}

/// Grants the lock, and then fails with this error, or replies that the entry is corrupt.
#[derive(Clone)]
struct UnreadableStore {
    memory: MemoryStore,
    answer: Option<StoreError>,
}

impl Store for UnreadableStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let is_acquire = matches!(command.operation, Operation::Acquire { .. });
        let answer = self.memory.apply(command).await?;
        match &self.answer {
            _ if is_acquire => Ok(answer),
            None => Ok(Answer::new(answer.now, Reply::Corrupt)),
            Some(error) => Err(error.clone()),
        }
    }
}
