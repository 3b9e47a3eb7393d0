//! Duplicates that arrive while the first request runs: they wait, and their outcome follows from
//! that of the first.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{BoxError, Outcome, Reply, Request, error};
use campanile_idempotency::policy::{OnExhausted, OnLocked};
use campanile_idempotency::{IdempotencyError, SettledFuture, Store, WaitForLock, reply};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, service_fn};

use crate::harness::{
    Harness, TTL, TestLayer, TestService, exhausted, failing_service, fingerprint_layer,
    is_pending, layer_error, request, request_with_payload, run_until_idle, store_key,
};

const HANDLER_TIME: Duration = Duration::from_secs(5);

fn waiting_layer(harness: &Harness) -> TestLayer {
    waiting(harness.layer())
}

fn waiting(layer: TestLayer) -> TestLayer {
    layer.on_locked(OnLocked::Wait { at_most: Duration::from_secs(3600) })
}

/// The operations of the commands that reached the store.
fn operations(harness: &Harness) -> Vec<&'static str> {
    harness.store.commands().iter().map(|command| command.operation.name()).collect()
}

/// The settled signal of the holder that blocks the request.
fn settled_signal<T: std::fmt::Debug>(result: &super::harness::CallResult<T>) -> SettledFuture {
    match layer_error(result) {
        IdempotencyError::Locked { settled: Some(settled), .. } => settled.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_running_key_cost_no_operation_and_get_its_reply() {
    const DUPLICATES: usize = 10_000;
    let harness = Harness::new();
    let service = waiting_layer(&harness).with_reply(reply::bytes()).layer(service_fn(
        async |_: Request<()>| {
            sleep(HANDLER_TIME).await;
            Ok::<_, BoxError>(Bytes::from_static(b"receipt"))
        },
    ));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let duplicates: Vec<_> = (0..DUPLICATES).map(|_| service.start(request("p-1"))).collect();
    assert_eq!(first.await.unwrap().unwrap(), Outcome::Processed(Bytes::from_static(b"receipt")));
    for duplicate in duplicates {
        let Outcome::Duplicate(duplicate) = duplicate.await.unwrap().unwrap() else {
            panic!("expected a duplicate");
        };
        assert_eq!(duplicate.reply.as_deref(), Some(&b"receipt"[..]));
        assert_eq!(duplicate.attempts, 1);
        assert_eq!(duplicate.completed_at, harness.entry("p-1").unwrap().at());
    }
    assert_eq!(operations(&harness), ["acquire", "complete"]);
    harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn waiters_of_failed_holder_get_its_backoff() {
    let harness = Harness::new();
    let service = waiting_layer(&harness).layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Err::<(), BoxError>(error::retry_after("busy", Duration::from_secs(7)).into())
    }));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let waiters: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    first.await.unwrap().unwrap_err();
    for waiter in waiters {
        match layer_error(&waiter.await.unwrap()) {
            IdempotencyError::BackingOff { retry_after, attempts: 1, .. } => {
                let due = Duration::from_millis(6_900)..=Duration::from_secs(7);
                assert!(due.contains(retry_after), "{retry_after:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(operations(&harness), ["acquire", "fail"]);
}

#[tokio::test(start_paused = true)]
async fn one_waiter_of_failed_holder_retries() {
    let harness = Harness::new();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::from_secs(3600)).retrying_failures())
        .layer(harness.layer())
        .service_fn(async |request: Request<()>| {
            sleep(HANDLER_TIME).await;
            match request.lock().unwrap().attempt() {
                1 => Err::<(), BoxError>("busy".into()),
                _ => Ok(()),
            }
        });
    let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    let mut processed = 0;
    for call in calls {
        let outcome = call.await.unwrap().unwrap();
        processed += usize::from(outcome == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(operations(&harness), ["acquire", "fail", "acquire", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_given_up_holder_are_given_up() {
    let harness = Harness::new();
    let layer = waiting_layer(&harness).on_exhausted(OnExhausted::GiveUp);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Err::<(), BoxError>(error::permanent("card expired").into())
    }));
    let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    for call in calls {
        match call.await.unwrap().unwrap() {
            Outcome::GivenUp(given_up) => {
                assert_eq!(given_up.error.as_deref(), Some("permanent error: card expired"));
                assert_eq!(given_up.attempts, 1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(operations(&harness), ["acquire", "give_up"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_no_error_that_is_not_stored() {
    let harness = Harness::new();
    let layer = harness.layer_with(|config| config.with_stored_errors(false));
    let layer = waiting(layer).on_exhausted(OnExhausted::GiveUp);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Err::<(), BoxError>(error::permanent("card expired").into())
    }));
    let calls = [service.start(request("p-1")), service.start(request("p-1"))];
    let [_, waiter] = calls.map(|call| async { call.await.unwrap().unwrap() });
    let Outcome::GivenUp(given_up) = waiter.await else { panic!("not given up") };
    assert_eq!(given_up.error, None);
}

#[tokio::test(start_paused = true)]
async fn one_waiter_of_released_holder_acquires() {
    let harness = Harness::new();
    let service = waiting_layer(&harness).layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Ok::<_, BoxError>(())
    }));
    let interrupted = request("p-1");
    let record = interrupted.record().clone();
    let first = service.start(interrupted);
    run_until_idle().await;
    let waiters: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
    assert!(is_pending(&waiters[0]).await);
    record.attempt().set_interrupted();
    first.abort();
    let mut processed = 0;
    for waiter in waiters {
        processed += usize::from(waiter.await.unwrap().unwrap() == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(operations(&harness), ["acquire", "release", "acquire", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn waiters_for_key_of_other_process_share_one_acquire() {
    let harness = Harness::new();
    let other_process = harness.other_process();
    let (other_service, mut held) = other_process.mock_service(other_process.layer());
    let holder = other_service.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();
    // More requests arrive while the reply is in flight.
    harness.store.inject_next_of("acquire", Fault::Slow(Duration::from_millis(100)));
    let (service, _handle) = harness.mock_service(waiting_layer(&harness));
    let waiters: Vec<_> = (0..1_000).map(|_| service.start(request("p-1"))).collect();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(operations(&harness), ["acquire"]);
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap().is_duplicate());
    }
    assert_eq!(operations(&harness), ["acquire", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_with_other_payload_never_gets_holders_answer() {
    let harness = Harness::new();
    let layer = fingerprint_layer(&harness)
        .on_locked(OnLocked::Wait { at_most: HANDLER_TIME * 2 })
        .with_reply(reply::bytes());
    let service = layer.layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Ok::<_, BoxError>(Bytes::from_static(b"100 cents"))
    }));
    let first = service.start(request_with_payload("p-1", "100"));
    run_until_idle().await;
    let (same, other) = (
        service.start(request_with_payload("p-1", "100")),
        service.start(request_with_payload("p-1", "999")),
    );
    first.await.unwrap().unwrap();
    assert!(same.await.unwrap().unwrap().is_duplicate());
    let other = other.await.unwrap();
    assert!(matches!(layer_error(&other), IdempotencyError::Mismatch { .. }), "{other:?}");
    // Only the one with another payload asked the store.
    assert_eq!(operations(&harness), ["acquire", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_of_repeated_completion_asks_the_store() {
    let harness = Harness::new();
    let service = waiting_layer(&harness).layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Ok::<_, BoxError>(())
    }));
    harness.store.inject_next_of("complete", Fault::LoseReply);
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let waiter = service.start(request("p-1"));
    first.await.unwrap().unwrap();
    let Outcome::Duplicate(duplicate) = waiter.await.unwrap().unwrap() else {
        panic!("expected a duplicate");
    };
    assert_eq!(duplicate.completed_at, harness.entry("p-1").unwrap().at());
    assert_eq!(operations(&harness), ["acquire", "complete", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn result_is_kept_while_signal_exists_and_at_most_a_second() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Ok::<_, BoxError>(())
    }));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let settled = settled_signal(&service.run("p-1").await);
    first.await.unwrap().unwrap();
    let end = Instant::now();
    settled.clone().await;
    harness.store.forget_calls();

    sleep(Duration::from_millis(900)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert!(
        operations(&harness).is_empty(),
        "after {:?}: {:?}",
        end.elapsed(),
        operations(&harness)
    );
    sleep(Duration::from_millis(100)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert_eq!(operations(&harness), ["acquire"], "an operator may have reopened the key");

    // The result of another key is not kept, because its signal was dropped.
    let second = service.start(request("p-2"));
    run_until_idle().await;
    drop(settled_signal(&service.run("p-2").await));
    second.await.unwrap().unwrap();
    harness.store.forget_calls();
    assert!(service.run("p-2").await.unwrap().is_duplicate());
    assert_eq!(operations(&harness), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn wait_longer_than_holders_backoff_asks_the_store() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Err::<(), BoxError>(error::retry_after("busy", Duration::from_secs(7)).into())
    }));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let settled = settled_signal(&service.run("p-1").await);
    first.await.unwrap().unwrap_err();
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::BackingOff { .. }), "{result:?}");
    sleep(Duration::from_secs(7)).await;
    let result = service.run("p-1").await;
    assert!(matches!(layer_error(&result), IdempotencyError::AttemptFailed(_)), "{result:?}");
    drop(settled);
    assert!(TTL > HANDLER_TIME, "no renewal in between");
    assert_eq!(operations(&harness), ["acquire", "fail", "acquire", "fail"]);
}

#[tokio::test(start_paused = true)]
async fn key_reopened_meanwhile_is_tried_again() {
    let permanent_error: fn() -> BoxError = || error::permanent("card expired").into();
    let retry_error: fn() -> BoxError =
        || error::retry_after("busy", Duration::from_secs(3600)).into();
    for fails in [permanent_error, retry_error] {
        let harness = Harness::new();
        let layer = harness.layer().on_exhausted(OnExhausted::GiveUp);
        let service = layer.layer(service_fn(move |_: Request<()>| async move {
            sleep(HANDLER_TIME).await;
            Err::<(), BoxError>(fails())
        }));
        let first = service.start(request("p-1"));
        run_until_idle().await;
        let _settled = settled_signal(&service.run("p-1").await);
        drop(first.await.unwrap());
        let token = harness.entry("p-1").unwrap().token();
        let reopened = harness.memory.redrive(store_key("p-1"), token, true).await;
        assert_eq!(reopened.unwrap(), Reply::Reopened);
        // An operator takes at least this long to reopen a key.
        sleep(Duration::from_secs(1)).await;
        harness.store.forget_calls();
        drop(service.run("p-1").await);
        assert_eq!(operations(&harness)[0], "acquire");
        assert_eq!(harness.entry("p-1").unwrap().attempt(), 1, "the handler ran");
    }
}

#[tokio::test(start_paused = true)]
async fn holder_without_fingerprint_does_not_answer_waiter_with_one() {
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |_: Request<()>| {
        sleep(HANDLER_TIME).await;
        Ok::<_, BoxError>(())
    }));
    let first = service.start(request("p-1"));
    run_until_idle().await;
    let other = fingerprint_layer(&harness).on_locked(OnLocked::Wait { at_most: HANDLER_TIME * 2 });
    let other = other.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let waiter = other.start(request_with_payload("p-1", "100"));
    first.await.unwrap().unwrap();
    waiter.await.unwrap().unwrap();
    assert_eq!(operations(&harness), ["acquire", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn rejection_that_keeps_last_error_is_answered_by_store() {
    let harness = Harness::new();
    let layer = waiting(harness.layer_with(|config| config.with_max_attempts(1)));
    let service = failing_service(&layer, || "declined".into());
    drop(service.run("p-1").await);
    sleep(Duration::from_secs(3600)).await;
    let result = service.run("p-1").await;
    let giving_up = exhausted(&result).take_lock().unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    giving_up.give_up("").await.unwrap();
    let Outcome::GivenUp(given_up) = waiter.await.unwrap().unwrap() else { panic!("not given up") };
    assert_eq!(given_up.error.as_deref(), Some("declined"));
}

/// The reply to an acquire is shared by all requests that wait for it.
#[tokio::test(start_paused = true)]
async fn requests_during_acquire_get_the_same_answer() {
    let handler: [fn() -> Result<(), BoxError>; 3] = [
        || Ok(()),
        || Err(error::permanent("card expired").into()),
        || Err(error::retry_after("busy", Duration::from_secs(60)).into()),
    ];
    for handler in handler {
        let harness = Harness::new();
        let layer = waiting_layer(&harness).on_exhausted(OnExhausted::GiveUp);
        let service = layer.layer(service_fn(move |_: Request<()>| async move { handler() }));
        drop(service.run("p-1").await);
        harness.store.forget_calls();
        harness.store.inject_next_of("acquire", Fault::Slow(Duration::from_millis(100)));
        let calls: Vec<_> = (0..100).map(|_| service.start(request("p-1"))).collect();
        let mut answers = std::collections::BTreeSet::new();
        for call in calls {
            answers.insert(match call.await.unwrap() {
                Ok(outcome) => format!("{outcome:?}"),
                Err(error) => error.to_string().split(" for ").next().unwrap().to_owned(),
            });
        }
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(operations(&harness), ["acquire"]);
    }
}
