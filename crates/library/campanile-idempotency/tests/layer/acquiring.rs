//! Acquiring the lock: one acquisition per key, counted once, whatever happens to its reply.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{
    Answer, BoxError, Command, FencingToken, Operation, Outcome, Owner, Request, Retention, State,
};
use campanile_idempotency::{
    IdempotencyError, LockKeeper, MemoryStore, Runner, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{
    HOUR, Harness, TTL, TestService, fingerprint_layer, is_pending, layer_error, lock, request,
    request_with_payload, run_until_idle, store_key,
};

/// The nonces of all acquires so far.
fn owners(harness: &Harness) -> Vec<Owner> {
    let commands = harness.store.commands();
    let owner = |command: &Command| match command.operation {
        Operation::Acquire { owner, .. } => Some(owner),
        _ => None,
    };
    commands.iter().filter_map(owner).collect()
}

#[tokio::test(start_paused = true)]
async fn concurrent_deliveries_acquire_once() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    let calls: Vec<_> = (0..20).map(|_| service.start(request("p-1"))).collect();
    let (_, respond) = handle.next_request().await.unwrap();
    run_until_idle().await;
    assert_eq!(harness.store.count("acquire"), 1);
    respond.send_response("done");
    let mut processed = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(outcome) => processed += usize::from(outcome == Outcome::Processed("done")),
            result => assert!(layer_error(&result).is_contention()),
        }
    }
    assert_eq!(processed, 1);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_processes_run_handler_once() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let runs = Arc::new(AtomicUsize::new(0));
    let service = |harness: &Harness| {
        let runs = runs.clone();
        harness.layer().layer(service_fn(move |_: Request<()>| {
            runs.fetch_add(1, Ordering::Relaxed);
            async {
                sleep(TTL * 3).await;
                Ok::<_, BoxError>(())
            }
        }))
    };
    for number in 0..50 {
        let id = format!("p-{number}");
        let (here, there) = (service(&harness), service(&other_process));
        let (here, there) = (here.start(request(&id)), there.start(request(&id)));
        let (here, there) = (here.await.unwrap(), there.await.unwrap());
        assert!(here.is_ok() != there.is_ok());
        let loser = if here.is_ok() { there } else { here };
        assert!(layer_error(&loser).is_contention());
    }
    assert_eq!(runs.load(Ordering::Relaxed), 50);
}

#[tokio::test(start_paused = true)]
async fn requests_during_calls_in_flight_share_one_batch() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    for id in ["first", "second"] {
        harness.store.inject_next(Fault::HangReply);
        drop(service.start(request(id)));
        run_until_idle().await;
    }
    for number in 0..7 {
        drop(service.start(request(&format!("p-{number}"))));
        run_until_idle().await;
    }
    assert_eq!(harness.store.calls().len(), 2, "too few commands for another call");
    harness.store.release();
    for _ in 0..9 {
        handle.next_request().await.unwrap();
    }
    let calls: Vec<_> = harness.store.calls().iter().map(|call| call.commands.len()).collect();
    assert_eq!(calls, [1, 1, 7]);
}

#[tokio::test(start_paused = true)]
async fn runnable_requests_share_one_batch() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let calls: Vec<_> =
        (0..7).map(|number| service.start(request(&format!("p-{number}")))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let calls: Vec<_> = harness.store.calls().iter().map(|call| call.commands.len()).collect();
    assert_eq!(calls, [7, 7], "the acquires, then the completions");
}

/// A store with larger batches splits each of them among more servers.
#[tokio::test(start_paused = true)]
async fn extra_call_needs_more_commands_for_larger_batches() {
    for (max_batch, threshold) in [(1, [1, 1, 1]), (64, [1, 8, 16]), (1024, [16, 128, 256])] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = BatchStore { max_batch, store: FaultyStore::new(memory) };
        let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
        tokio::spawn(task);
        store.store.inject_always(Fault::Hang);
        let runner = Runner::new(&keeper, "payments").unwrap();
        let mut numbers = 0_u32..;
        let mut start_requests = async |count: usize| {
            for number in numbers.by_ref().take(count) {
                let runner = runner.clone();
                let run = async move { runner.run(number, async |_| Ok::<_, BoxError>(())).await };
                drop(tokio::spawn(run));
            }
            run_until_idle().await;
            store.store.calls().len()
        };
        assert_eq!(start_requests(1).await, 1, "{max_batch}");
        for (calls, threshold) in (2..).zip(threshold) {
            assert_eq!(start_requests(threshold - 1).await, calls - 1, "{max_batch}");
            assert_eq!(start_requests(1).await, calls, "{max_batch}");
        }
        assert_eq!(start_requests(2 * max_batch).await, 4, "{max_batch}: at most four calls");
    }
}

/// A store with this maximum batch size.
#[derive(Clone)]
struct BatchStore {
    max_batch: usize,
    store: FaultyStore<MemoryStore>,
}

impl Store for BatchStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.store.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        self.store.apply_batch(batch).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.max_batch).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn batch_respects_max_size_and_has_distinct_keys() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    harness.store.inject_always(Fault::Slow(Duration::from_millis(5)));
    for number in 0..1000 {
        drop(service.start(request(&format!("p-{number}"))));
    }
    sleep(HOUR).await;
    for call in harness.store.calls() {
        let keys: HashSet<_> = call.commands.iter().map(|command| &command.key).collect();
        assert!(call.commands.len() <= 64);
        assert_eq!(keys.len(), call.commands.len());
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_with_lost_reply_is_cancelled_and_not_counted() {
    for fault in [Fault::LoseReply, Fault::HangReply] {
        let harness = Harness::new();
        let (service, mut handle) = harness.mock_service(harness.layer());
        harness.store.inject_next_of("acquire", fault);
        harness.store.inject_next_of("cancel", Fault::LoseReply);
        let result = service.run("p-1").await;
        assert!(matches!(layer_error(&result), IdempotencyError::Store(_)));
        sleep(Duration::from_secs(1)).await;
        let entry = harness.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
        assert_eq!(harness.store.count("cancel"), 2, "repeated until it is answered");

        let call = service.start(request("p-1"));
        let (request, respond) = handle.next_request().await.unwrap();
        assert_eq!(lock(&request).attempt(), 1);
        respond.send_response("done");
        call.await.unwrap().unwrap();
        harness.assert_settled().await;
    }
}

/// A late copy of the cancel would release a lock that was granted to the same nonce.
#[tokio::test(start_paused = true)]
async fn cancelled_nonce_is_never_reused() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    harness.store.inject_next_of("cancel", Fault::Refuse);
    harness.store.inject_next_of("cancel", Fault::Refuse);
    service.run("p-1").await.unwrap_err();
    let granted = harness.entry("p-1").unwrap();
    assert_eq!((granted.state(), granted.attempt()), (State::Processing, 1));

    // Until the cancel is answered, the store counts as unavailable for this key.
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Store(_)), "{result:?}");

    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1, "the first attempt was uncounted");
    let owners = owners(&harness);
    assert_eq!(owners.len(), 2);
    assert_ne!(owners[0], owners[1]);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn delivery_during_cancel_acquires_after_its_answer() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    harness.store.inject_next_of("cancel", Fault::HangReply);
    service.run("p-1").await.unwrap_err();
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    harness.store.release();
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    let owners = owners(&harness);
    assert_ne!(owners[0], owners[1]);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn delivery_during_cancel_waits_for_at_most_one_call() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    harness.store.inject_next_of("cancel", Fault::HangReply);
    service.run("p-1").await.unwrap_err();
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Store(_)), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn other_payload_after_acquire_in_doubt_is_no_mismatch() {
    let harness = Harness::new();
    let service = fingerprint_layer(&harness);
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    harness.store.inject_next_of("cancel", Fault::Refuse);
    service.start(request_with_payload("p-1", "100")).await.unwrap().unwrap_err();
    assert_eq!(
        service.start(request_with_payload("p-1", "120")).await.unwrap().unwrap(),
        Outcome::Processed(())
    );
}

/// Holds even if no further request for the key arrives.
#[tokio::test(start_paused = true)]
async fn acquire_in_doubt_is_cancelled_after_outage_longer_than_ttl() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    harness.store.inject_next_of("acquire", Fault::LoseReply);
    harness.store.inject_always_of("cancel", Fault::Refuse);
    service.run("p-1").await.unwrap_err();
    sleep(TTL * 3 / 2).await;
    harness.store.heal();
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn processing_resumes_after_outage_and_nothing_is_counted() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(harness.layer());
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply, Fault::HangReply, Fault::Panic] {
        let id = format!("{fault:?}");
        harness.store.inject_always(fault);
        for _ in 0..10 {
            let result = service.run(&id).await;
            assert!(matches!(
                layer_error(&result),
                IdempotencyError::Store(_) | IdempotencyError::Locked { .. }
            ));
            sleep(TTL / 3).await;
        }
        harness.store.heal();
        let call = service.start(request(&id));
        let (request, respond) = handle.next_request().await.unwrap();
        assert_eq!(lock(&request).attempt(), 1, "{fault:?}");
        respond.send_response("done");
        call.await.unwrap().unwrap();
    }
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn grant_received_after_its_expiration_is_released() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_lock_ttl(Duration::from_millis(500)));
    let (service, _handle) = harness.mock_service(layer);
    harness.store.inject_next_of("acquire", Fault::Slow(Duration::from_millis(40)));
    // The process was paused between the command and its reply.
    let call = service.start(request("p-1"));
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(harness.store.count("acquire"), 1);
    harness.clock.advance(Duration::from_secs(1));
    let result = call.await.unwrap();
    let IdempotencyError::Store(error) = layer_error(&result) else {
        panic!("expected a store error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn wrong_number_of_answers_fails_all_requests() {
    for fault in [Fault::FewerAnswers, Fault::MoreAnswers] {
        let harness = Harness::new();
        let service = harness.layer().layer(service_fn(async |request: Request<()>| {
            let lock = request.lock().unwrap();
            Ok::<_, BoxError>((lock.key().clone(), lock.token()))
        }));
        harness.store.inject_next(Fault::HangReply);
        let first = service.start(request("first"));
        run_until_idle().await;
        harness.store.inject_next_of("acquire", fault);
        let calls: Vec<_> =
            (0..5).map(|number| service.start(request(&format!("p-{number}")))).collect();
        run_until_idle().await;
        harness.store.release();
        first.await.unwrap().unwrap();
        for call in calls {
            assert!(matches!(layer_error(&call.await.unwrap()), IdempotencyError::Store(_)));
        }
        sleep(TTL).await;
        for number in 0..5 {
            let id = format!("p-{number}");
            let (key, token) = service.run(&id).await.unwrap().into_reply().unwrap();
            assert_eq!(key.as_bytes(), id.as_bytes());
            let entry = harness.entry(&id).unwrap();
            assert_eq!((entry.token(), entry.attempt()), (token, 1));
        }
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn granted_token_exceeds_all_tokens_seen_before() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().token())
    }));
    let mut largest = FencingToken::ZERO;
    for number in 0..20 {
        let id = format!("p-{}", number % 7);
        if let Some(token) = service.run(&id).await.unwrap().into_reply() {
            assert!(token > largest);
            largest = token;
        }
        let commands = harness.store.commands();
        for command in &commands {
            if let Operation::Acquire { floor, .. } = command.operation {
                assert!(floor <= largest);
            }
        }
        harness.store.forget_calls();
        service.run(&format!("next-{number}")).await.unwrap();
        let commands = harness.store.commands();
        let Operation::Acquire { floor, .. } = commands[0].operation else {
            panic!("expected an acquire");
        };
        assert_eq!(floor, largest);
        largest = harness.entry(&format!("next-{number}")).unwrap().token();
    }
}

/// An absurd token would spread to every key, until no larger token is left for any of them.
#[tokio::test(start_paused = true)]
async fn absurd_token_does_not_raise_tokens_of_other_keys() {
    let harness = Harness::new();
    let absurd = FencingToken::new(1 << 52).unwrap();
    let (owner, ttl) = (Owner::new(7).unwrap(), TTL);
    let acquire = Operation::Acquire {
        owner,
        ttl,
        max_attempts: 0,
        fingerprint: None,
        floor: absurd,
        details: None,
    };
    for operation in [acquire, Operation::Cancel { owner }] {
        let key = store_key("absurd");
        let retention = Retention::default();
        let command = Command { key, operation, retention };
        harness.memory.apply(command).await.unwrap();
    }
    let service = harness.layer().layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().token())
    }));
    let token = |outcome: Outcome<FencingToken>| outcome.into_reply().unwrap();
    assert!(token(service.run("absurd").await.unwrap()) > absurd);
    assert!(token(service.run("p-1").await.unwrap()) < absurd);
}

#[tokio::test(start_paused = true)]
async fn acquire_dropped_before_sending_is_not_sent() {
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(harness.layer());
    for id in ["first", "second"] {
        harness.store.inject_next(Fault::HangReply);
        drop(service.start(request(id)));
        run_until_idle().await;
    }
    let call = service.start(request("p-1"));
    run_until_idle().await;
    call.abort();
    run_until_idle().await;
    harness.store.heal();
    run_until_idle().await;
    assert_eq!(harness.store.count("acquire"), 2);
    assert_eq!(harness.entry("p-1"), None);
}
