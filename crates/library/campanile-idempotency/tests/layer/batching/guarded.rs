//! Batches inside the layer: each record has its own lock, attempt and outcome.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::limits::MAX_STEPS_BYTES;
use campanile_core::{BoxError, Disposition, LostCause, Outcome, Request, State, error};
use campanile_idempotency::{BatchError, BatchLayer, IdempotencyError};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceBuilder, service_fn};

use crate::harness::{
    HOUR, Harness, TTL, TestService, exhausted, failed, layer_error, request, run_until_idle,
};

type Requests = Vec<Request<()>>;

fn ids(batch: &Requests) -> Vec<String> {
    let id = |request: &Request<()>| {
        let bytes = request.lock().unwrap().key().as_bytes().to_vec();
        String::from_utf8(bytes).unwrap()
    };
    batch.iter().map(id).collect()
}

fn batches() -> BatchLayer<Request<()>> {
    BatchLayer::new(10, HOUR).unwrap()
}

type Results<T> = Result<Vec<Result<T, BoxError>>, BoxError>;

/// A batch handler that calls `handle` for one batch after each notification of the gate.
fn gated<T, H>(
    gate: &Arc<Notify>,
    handle: H,
) -> impl Service<
    Requests,
    Response = Vec<Result<T, BoxError>>,
    Error = BoxError,
    Future: Send + 'static,
> + Send
+ use<T, H>
where
    T: Send + 'static,
    H: Fn(Requests) -> Results<T> + Clone + Send + 'static,
{
    let gate = gate.clone();
    service_fn(move |batch: Requests| {
        let (gate, handle) = (gate.clone(), handle.clone());
        async move {
            gate.notified().await;
            handle(batch)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn batch_records_have_own_lock_attempt_and_outcome() {
    let harness = Harness::new();
    let (gate, seen) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
    let all = seen.clone();
    let handler = gated(&gate, move |batch: Requests| {
        let ids = ids(&batch);
        all.lock().unwrap().push(ids.clone());
        let result = |id: &String| match &**id {
            "bad" => Err(error::permanent("card expired").into()),
            id => Ok(format!("charged {id}")),
        };
        Ok(ids.iter().map(result).collect())
    });
    let service = harness.layer().layer(batches().layer(handler));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let calls = ["p-2", "bad", "p-3"].map(|id| service.start(request(id)));
    run_until_idle().await;
    gate.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed("charged p-1".into()));
    gate.notify_one();
    let [second, bad, third] = calls;
    assert_eq!(second.await.unwrap().unwrap(), Outcome::Processed("charged p-2".into()));
    assert_eq!(third.await.unwrap().unwrap(), Outcome::Processed("charged p-3".into()));
    let bad = bad.await.unwrap();
    assert_eq!((failed(&bad).attempt, failed(&bad).disposition), (1, Disposition::DeadLetter));
    assert_eq!(*seen.lock().unwrap(), [vec!["p-1"], vec!["p-2", "bad", "p-3"]]);
    for id in ["p-1", "p-2", "p-3"] {
        assert_eq!(harness.state(id), Some(State::Completed), "{id}");
        assert!(service.run(id).await.unwrap().is_duplicate());
    }
    drop(bad);
    harness.assert_settled().await;
    assert_eq!(harness.state("bad"), Some(State::Retrying));
}

#[tokio::test(start_paused = true)]
async fn batch_that_fails_with_a_large_step_gives_up_only_its_record() {
    let harness = Harness::new();
    let handler = service_fn(async |batch: Requests| {
        for request in &batch {
            let lock = request.lock().unwrap();
            let size = if lock.key().as_bytes() == b"big" { MAX_STEPS_BYTES } else { 1 };
            lock.step("charge", async || Ok::<_, BoxError>("x".repeat(size))).await?;
        }
        Results::Ok(batch.iter().map(|_| Ok(())).collect())
    });
    let service = harness.layer().layer(batches().layer(handler));
    let [first, second, big] = ["p-1", "p-2", "big"].map(|id| service.start(request(id)));
    for call in [first, second] {
        let result = call.await.unwrap();
        assert_eq!(failed(&result).disposition, Disposition::Retry { after: None });
    }
    assert_eq!(failed(&big.await.unwrap()).disposition, Disposition::DeadLetter);
}

#[tokio::test(start_paused = true)]
async fn batch_without_its_dependency_counts_no_attempt() {
    let harness = Harness::new();
    let handler = service_fn(async |_: Requests| {
        Results::<()>::Err(error::unavailable("connection refused").of("postgres").into())
    });
    let service = harness.layer().layer(batches().layer(handler));
    for call in ["p-1", "p-2"].map(|id| service.start(request(id))) {
        let unavailable = Disposition::Unavailable { dependency: Some("postgres") };
        assert_eq!(failed(&call.await.unwrap()).disposition, unavailable);
    }
    for id in ["p-1", "p-2"] {
        assert_eq!(harness.entry(id).unwrap().attempt(), 0, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_batch_is_failed_attempt_of_each_record() {
    type Handle = fn(Requests) -> Results<()>;
    let handles: [Handle; 3] =
        [|_| Err("no table".into()), |_| panic!("test panic"), |_| Ok(vec![])];
    for handle in handles {
        let harness = Harness::new();
        let gate = Arc::new(Notify::new());
        let service = harness.layer().layer(batches().layer(gated(&gate, handle)));
        let calls = ["p-1", "p-2", "p-3"].map(|id| service.start(request(id)));
        for _ in 0..2 {
            run_until_idle().await;
            gate.notify_one();
        }
        for (call, id) in calls.into_iter().zip(["p-1", "p-2", "p-3"]) {
            let result = call.await.unwrap();
            assert_eq!(failed(&result).disposition, Disposition::Retry { after: None });
            assert!(error::find::<BatchError>(&*failed(&result).source).is_some());
            let entry = harness.entry(id).unwrap();
            assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
        }
        harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn records_of_a_batch_that_always_fails_are_given_up() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_max_attempts(2));
    let handler = service_fn(async |_: Requests| Results::<()>::Err("no table".into()));
    let service = layer.layer(batches().layer(handler));
    for attempt in 1..=3 {
        let calls = ["p-1", "p-2"].map(|id| service.start(request(id)));
        for call in calls {
            let result = call.await.unwrap();
            match attempt {
                1 | 2 => assert_eq!(failed(&result).attempt, attempt),
                _ => assert_eq!(exhausted(&result).attempts, 2),
            }
        }
        tokio::time::sleep(HOUR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn record_with_lost_lock_leaves_batch_and_others_complete() {
    let harness = Harness::new();
    let (gate, checks) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
    let seen = checks.clone();
    let handler = gated(&gate, move |batch: Requests| {
        let check = |request: &Request<()>| request.lock().unwrap().check().is_ok();
        *seen.lock().unwrap() = batch.iter().map(check).collect();
        Ok(batch.iter().map(|_| Ok(())).collect())
    });
    let service = harness.layer().layer(batches().layer(handler));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let [second, third] = ["p-2", "p-3"].map(|id| service.start(request(id)));
    run_until_idle().await;
    gate.notify_one();
    first.await.unwrap().unwrap();
    run_until_idle().await;
    harness.take_over("p-2").await;
    // The next renewal reports the loss.
    tokio::time::sleep(TTL / 2).await;
    let lost = second.await.unwrap();
    let IdempotencyError::LockLost(lost) = layer_error(&lost) else { panic!("{lost:?}") };
    assert_eq!(lost.cause, LostCause::Superseded);
    gate.notify_one();
    assert_eq!(third.await.unwrap().unwrap(), Outcome::Processed(()));
    assert_eq!(*checks.lock().unwrap(), [false, true], "the handler sees the lost lock");
    assert_eq!(harness.state("p-2"), Some(State::Processing), "held by the new owner");
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn timeout_around_batch_fails_each_record_and_drops_hung_batch() {
    let harness = Harness::new();
    let held = Arc::new(());
    let held_by_handler = held.clone();
    let hanging = service_fn(move |_: Requests| {
        let held = held_by_handler.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Results::<()>::Ok(vec![])
        }
    });
    let service = ServiceBuilder::new()
        .layer(harness.layer())
        .timeout(Duration::from_secs(10))
        .layer(batches())
        .service(hanging);
    let calls = ["p-1", "p-2"].map(|id| service.start(request(id)));
    run_until_idle().await;
    assert_eq!(Arc::strong_count(&held), 3);
    for (call, id) in calls.into_iter().zip(["p-1", "p-2"]) {
        let result = call.await.unwrap();
        assert!(failed(&result).source.is::<tower::timeout::error::Elapsed>());
        assert_eq!(harness.entry(id).map(|entry| entry.attempt()), Some(1));
    }
    run_until_idle().await;
    assert_eq!(Arc::strong_count(&held), 2);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_releases_its_batch_permit() {
    let harness = Harness::new();
    let echo = service_fn(async |batch: Requests| {
        Ok::<_, BoxError>(batch.iter().map(|_| Ok::<_, BoxError>(())).collect())
    });
    let service = harness.layer().layer(BatchLayer::new(1, HOUR).unwrap().layer(echo));
    service.run("p-1").await.unwrap();
    // With batches of one request, there are only two permits.
    for _ in 0..5 {
        assert!(service.run("p-1").await.unwrap().is_duplicate());
    }
    service.run("p-2").await.unwrap();
    harness.assert_settled().await;
}
