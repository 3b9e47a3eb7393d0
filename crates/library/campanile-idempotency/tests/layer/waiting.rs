//! Waiting for a key that another request holds, inside the layer and around it.

use std::time::Duration;

use campanile_core::{BoxError, Command, Operation, Outcome, Request, error};
use campanile_idempotency::policy::OnLocked;
use campanile_idempotency::{IdempotencyError, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceBuilder, service_fn};
use tower_test::mock;

use crate::harness::{
    Harness, MockHandle, MockHandler, TTL, TestLayer, TestService, failed, failing_service,
    is_pending, layer_error, lock, request, run_until_idle,
};

const MAX_WAIT: Duration = Duration::from_secs(60);

fn waiting_layer(harness: &Harness) -> TestLayer {
    harness.layer().on_locked(OnLocked::Wait { at_most: MAX_WAIT })
}

#[tokio::test(start_paused = true)]
async fn waiter_is_answered_when_holder_ends() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(waiting_layer(&harness));
    let holder = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    harness.store.forget_calls();
    sleep(TTL / 10).await;
    assert_eq!(harness.store.commands(), [], "waiting writes nothing");

    respond.send_response("done");
    holder.await.unwrap().unwrap();
    let now = Instant::now();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    assert!(now.elapsed() <= Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn waiters_hold_no_permit_and_all_finish() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .layer(waiting_layer(&harness))
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(async |_: Request<()>| {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(())
        });
    let calls: Vec<_> = (0..3).map(|_| service.start(request("p-1"))).collect();
    let other = service.start(request("p-2"));
    let start = Instant::now();
    let mut processed = 0;
    for call in calls {
        let outcome = call.await.unwrap().unwrap();
        processed += usize::from(outcome == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(other.await.unwrap().unwrap(), Outcome::Processed(()));
    assert!(start.elapsed() <= Duration::from_secs(3));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn other_key_runs_while_one_waits() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let _holder = other_service.start(request("p-1"));
    let _held = held.next_request().await.unwrap();

    let (handler, mut handle): (MockHandler, MockHandle) = mock::pair();
    let service = waiting_layer(&harness).layer(ConcurrencyLimitLayer::new(1).layer(handler));
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let call = service.start(request("p-2"));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert!(!waiter.is_finished(), "it still waits");
}

#[tokio::test(start_paused = true)]
async fn waiter_retries_key_held_by_other_process() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let holder = other_service.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();
    let (service, _handle) = harness.mock_service(waiting_layer(&harness));
    let waiter = service.start(request("p-1"));
    sleep(TTL).await;
    assert!(is_pending(&waiter).await);
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    let now = Instant::now();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    assert!(now.elapsed() <= TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn waiter_gives_up_exactly_at_its_limit_and_changes_nothing() {
    for at_most in [Duration::from_millis(700), Duration::from_secs(100), TTL] {
        let harness = Harness::new();
        let layer = harness.layer().on_locked(OnLocked::Wait { at_most });
        let (service, mut handle) = harness.mock_service(layer);
        let _holder = service.start(request("p-1"));
        let (request_of_holder, _respond) = handle.next_request().await.unwrap();
        let commands = harness.store.commands().len();
        let start = Instant::now();
        let result = service.run("p-1").await;
        assert!(matches!(layer_error(&result), IdempotencyError::Locked { .. }));
        let waited = start.elapsed();
        assert!((at_most..=at_most + Duration::from_millis(2)).contains(&waited), "{waited:?}");
        assert!(lock(&request_of_holder).check().is_ok());
        let sent = &harness.store.commands()[commands..];
        let is_renewal = |command: &Command| matches!(command.operation, Operation::Renew { .. });
        assert!(sent.iter().all(is_renewal), "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_for_another_process_gives_up_and_changes_nothing() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let holder = other_service.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();
    let before = harness.entry("p-1").unwrap();
    let layer = harness.layer().on_locked(OnLocked::Wait { at_most: TTL / 5 });
    let (service, _handle) = harness.mock_service(layer);
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { .. }));
    run_until_idle().await;
    assert_eq!(harness.entry("p-1").unwrap(), before);
    respond.send_response("done");
    holder.await.unwrap().unwrap();
}

/// The limit applies to the time that a request has waited, not to the time it could have waited.
#[tokio::test(start_paused = true)]
async fn waiters_woken_early_keep_their_remaining_time() {
    const WAITERS: u64 = 10;
    let harness = Harness::new();
    let hold_time = Duration::from_secs(5);
    let service =
        waiting_layer(&harness).layer(service_fn(move |request: Request<()>| async move {
            sleep(hold_time).await;
            match request.lock().unwrap().attempt() {
                1 => Err::<(), BoxError>(overloaded()),
                _ => unreachable!("an overloaded attempt is not counted"),
            }
        }));
    let calls: Vec<_> = (0..WAITERS).map(|_| service.start(request("p-1"))).collect();
    let mut ran = 0;
    for call in calls {
        match layer_error(&call.await.unwrap()) {
            IdempotencyError::AttemptFailed(_) => ran += 1,
            other => panic!("after {ran}: {other:?}"),
        }
    }
    assert_eq!(ran, WAITERS);
}

fn overloaded() -> BoxError {
    Box::new(tower::load_shed::error::Overloaded::new())
}

#[tokio::test(start_paused = true)]
async fn maximum_wait_limit_is_allowed() {
    let harness = Harness::new();
    let at_most = Duration::MAX;
    let layer = harness.layer().on_locked(OnLocked::Wait { at_most });
    let (service, mut handle) = harness.mock_service(layer);
    let _holder = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    sleep(TTL * 10).await;
    respond.send_response("done");
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn waiter_can_be_dropped() {
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(waiting_layer(&harness));
    let holder = service.start(request("p-1"));
    let (_, respond) = handle.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let before = harness.entry("p-1");
    waiter.abort();
    assert!(is_pending(&holder).await);
    assert_eq!(harness.entry("p-1"), before);
    respond.send_response("done");
    assert_eq!(holder.await.unwrap().unwrap(), Outcome::Processed("done"));
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn outer_retry_waits_for_the_lock() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    for holder in [&harness, &other_process] {
        let (other_service, mut held) = holder.mock_service(holder.layer());
        let id = format!("{:p}", holder);
        let hold_time = other_service.start(request(&id));
        let (_, respond) = held.next_request().await.unwrap();
        let (handler, _handle): (MockHandler, MockHandle) = mock::pair();
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(MAX_WAIT))
            .layer(harness.layer())
            .service(handler);
        let call = service.start(request(&id));
        sleep(TTL / 2).await;
        assert!(is_pending(&call).await);
        respond.send_response("done");
        hold_time.await.unwrap().unwrap();
        assert!(call.await.unwrap().unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn outer_retry_retries_at_the_reported_time() {
    let harness = Harness::new();
    let mut other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let _holder = other_service.start(request("p-1"));
    let _held = held.next_request().await.unwrap();
    other_process.crash().await;
    let handler = service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().attempt())
    });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(MAX_WAIT))
        .layer(harness.layer())
        .service(handler);
    let start = Instant::now();
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(2));
    assert!((TTL..TTL + TTL / 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    // The retry tries about three times per TTL.
    assert!((3..=5).contains(&harness.store.count("acquire")));
}

#[tokio::test(start_paused = true)]
async fn outer_retry_waits_for_backoff_of_other_request() {
    let harness = Harness::new();
    let later = Duration::from_secs(7);
    let fail = failing_service(&harness.layer(), move || error::retry_after("busy", later).into());
    assert!(matches!(layer_error(&fail.run("p-1").await), IdempotencyError::AttemptFailed(_)));
    let handler = service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().attempt())
    });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(MAX_WAIT))
        .layer(harness.layer())
        .service(handler);
    let start = Instant::now();
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(2));
    let waited = start.elapsed();
    assert!((later..=later + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

/// Holds even if the handler's error is about a lock that the handler itself did not get.
#[tokio::test(start_paused = true)]
async fn outer_retry_does_not_retry_handler_errors() {
    let harness = Harness::new();
    let (holding, mut held) = harness.mock_service(harness.layer());
    let _holder = holding.start(request("account-7"));
    let _held = held.next_request().await.unwrap();
    for id in ["p-1", "p-2"] {
        let inner = holding.clone();
        let handler = service_fn(move |result: Request<()>| {
            let inner = inner.clone();
            async move {
                match result.lock().unwrap().key().as_bytes() {
                    b"p-1" => Err::<&str, BoxError>("gateway busy".into()),
                    _ => inner.start(request("account-7")).await?.map(|_| "done"),
                }
            }
        });
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(MAX_WAIT))
            .layer(harness.layer())
            .service(handler);
        let start = Instant::now();
        let result = service.run(id).await;
        assert_eq!(failed(&result).attempt, 1);
        assert!(start.elapsed() <= Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn outer_retry_gives_up_at_its_limit() {
    let harness = Harness::new();
    let (other_service, mut held) = harness.mock_service(harness.layer());
    let _holder = other_service.start(request("p-1"));
    let _held = held.next_request().await.unwrap();
    let (handler, _handle): (MockHandler, MockHandle) = mock::pair();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(MAX_WAIT))
        .layer(harness.layer())
        .service(handler);
    let start = Instant::now();
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::Locked { .. }));
    let waited = start.elapsed();
    assert!((MAX_WAIT..=MAX_WAIT + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn outer_retry_waits_for_failures_if_enabled() {
    let harness = Harness::new();
    let handler =
        service_fn(async |request: Request<()>| match request.lock().unwrap().attempt() {
            3 => Ok("done"),
            _ => Err::<_, BoxError>("gateway busy".into()),
        });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX).retrying_failures())
        .layer(harness.layer())
        .service(handler);
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));
    assert_eq!(harness.entry("p-1").unwrap().attempt(), 3);

    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX))
        .layer(harness.layer())
        .service(handler);
    assert!(matches!(layer_error(&service.run("p-2").await), IdempotencyError::AttemptFailed(_)));
}

#[tokio::test(start_paused = true)]
async fn outer_retry_ends_with_last_attempt() {
    let harness = Harness::new();
    let handler = service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into()));
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX).retrying_failures())
        .layer(harness.layer_with(|config| config.with_max_attempts(3)))
        .service(handler);
    let result = service.run("p-1").await;
    let IdempotencyError::AttemptFailed(failed) = layer_error(&result) else {
        panic!("expected a failed attempt");
    };
    assert_eq!((failed.attempt, failed.retry_after), (3, None));
}

#[tokio::test(start_paused = true)]
async fn outer_retry_does_not_wait_for_the_store() {
    let harness = Harness::new();
    harness.store.inject_always(Fault::Refuse);
    let (handler, _handle): (MockHandler, MockHandle) = mock::pair();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(MAX_WAIT).retrying_failures())
        .layer(harness.layer())
        .service(handler);
    let start = Instant::now();
    assert!(matches!(layer_error(&service.run("p-1").await), IdempotencyError::Store(_)));
    assert!(start.elapsed() < Duration::from_secs(1));
}
