//! The events that the layer and its keeper log. A separate test binary, because tracing caches the
//! interest in each callsite for the whole process, and other tests would reach a callsite first without
//! a subscriber.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[allow(dead_code, reason = "shared with the other test binary, which uses all of it")]
#[path = "../layer/harness.rs"]
mod harness;
mod lines;
mod observing;

use std::future::pending;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Record, Request, error};
use campanile_idempotency::policy::{OnExhausted, OnLost};
use campanile_idempotency::{IdempotencyLayer, LockKeeper};
use campanile_test::faults::Fault;
use tokio::time::{advance, sleep};
use tower::{Layer, service_fn};

use harness::{
    Harness, TTL, TestService, failing_service, is_pending, layer_of, lock, request,
    run_until_idle, store_key,
};
use lines::Lines;

const POSSIBLE: &str = "campanile.duplicate_effect_possible";

fn possible(cause: &str) -> String {
    format!("{POSSIBLE}=\"{cause}\"")
}

fn key_digest() -> String {
    let digest = store_key("p-1").digest().map(|byte| format!("{byte:02x}"));
    format!("key_digest={}", digest.concat())
}

/// The fields of each event about a lock.
fn lock_fields(token: u64) -> [String; 5] {
    [
        "record=payments/0@0".to_owned(),
        "namespace=\"payments\"".to_owned(),
        key_digest(),
        format!("token={token}"),
        "instance=\"payments-7d9f/1\"".to_owned(),
    ]
}

/// A layer of this process, with a name.
fn layer(harness: &Harness) -> harness::TestLayer {
    layer_of(&harness.keeper.clone().with_instance("payments-7d9f/1"), "payments".into())
}

#[tokio::test(start_paused = true)]
async fn lock_lost_while_handler_runs_is_reported_once() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(layer(&harness));
    let call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    harness.take_over("p-1").await;
    call.await.unwrap().unwrap_err();
    harness.assert_settled().await;
    lines.assert_one("WARN", POSSIBLE, &lock_fields(lock(&request).token().get()));
    lines.assert_one("WARN", &possible("lock_lost"), &["cause=Superseded", "lock lost"]);
}

/// The background is not polled, as if its thread were late.
#[tokio::test(start_paused = true)]
async fn loss_that_only_the_holder_notices_is_reported() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let (keeper, _background) =
        LockKeeper::pair(harness.store.clone(), harness.clock.keeper_clock());
    let (service, mut handle) = harness.mock_service(layer_of(&keeper, "payments".into()));
    let call = service.start(request("p-1"));
    let (_request, respond) = handle.next_request().await.unwrap();
    advance(TTL).await;
    respond.send_response("done");
    call.await.unwrap().unwrap_err();
    run_until_idle().await;
    lines.assert_one("WARN", &possible("lock_lost"), &["cause=Expired"]);
}

#[tokio::test(start_paused = true)]
async fn only_a_step_makes_an_effect_possible_if_the_handler_is_rolled_back() {
    for has_step in [false, true] {
        let (lines, _guard) = Lines::capture();
        let harness = Harness::new();
        let handler = service_fn(move |request: Request<()>| async move {
            if has_step {
                lock(&request).step("charge", async || Ok::<_, BoxError>(())).await?;
            }
            pending::<Result<(), BoxError>>().await
        });
        let service = layer(&harness).with_rollback().layer(handler);
        let call = service.start(request("p-1"));
        assert!(is_pending(&call).await);
        harness.take_over("p-1").await;
        call.await.unwrap().unwrap_err();
        harness.assert_settled().await;
        lines.assert_one("WARN", "lock lost", &["cause=Superseded"]);
        assert_eq!(lines.count(&[&possible("lock_lost")]), usize::from(has_step), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lock_lost_before_handler_starts_had_no_effect() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let (service, _handle) = harness.mock_service(layer(&harness));
    let record = Record::builder("payments", 0, 0).header("id", "p-1").build();
    record.attempt().start(true);
    let call = service.start(Request::new(record, ()));
    assert!(is_pending(&call).await, "the record is ahead of its turn");
    harness.take_over("p-1").await;
    sleep(TTL / 3).await;
    lines.assert_one("WARN", "lock lost", &["record=payments/0@0"]);
    assert_eq!(lines.count(&[POSSIBLE]), 0, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_completion_is_reported_as_an_error() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(layer(&harness));
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    harness.take_over("p-1").await;
    respond.send_response("done");
    call.await.unwrap().unwrap_err();
    let token = lock(&request).token().get();
    lines.assert_one("ERROR", &possible("completion_refused"), &lock_fields(token));
    assert_eq!(lines.count(&[POSSIBLE]), 1, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn pending_completions_are_reported_once_a_minute() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let (service, mut handle) = harness.mock_service(layer(&harness));
    let calls = [service.start(request("p-1")), service.start(request("p-2"))];
    let (first, respond) = handle.next_request().await.unwrap();
    let (_, respond_second) = handle.next_request().await.unwrap();
    harness.store.inject_always_of("complete", Fault::Refuse);
    respond.send_response("done");
    run_until_idle().await;
    respond_second.send_response("done");
    let pending = || lines.count(&["WARN", &possible("completion_pending"), "error="]);
    sleep(Duration::from_secs(59)).await;
    assert_eq!(pending(), 1, "{lines:?}");
    lines.assert_one("WARN", POSSIBLE, &lock_fields(lock(&first).token().get()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(pending(), 2, "{lines:?}");
    harness.store.heal();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    }
    assert_eq!(lines.count(&[POSSIBLE]), 2, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn completion_pending_at_the_keepers_end_has_failed() {
    let (lines, _guard) = Lines::capture();
    let mut harness = Harness::new();
    let (service, mut handle) = harness.mock_service(layer(&harness));
    let call = service.start(request("p-1"));
    let (request, respond) = handle.next_request().await.unwrap();
    harness.store.inject_always_of("complete", Fault::Refuse);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    harness.crash().await;
    let token = lock(&request).token().get();
    lines.assert_one("ERROR", &possible("completion_failed"), &lock_fields(token));
}

#[tokio::test(start_paused = true)]
async fn failure_pending_at_the_keepers_end_is_no_lost_completion() {
    let (lines, _guard) = Lines::capture();
    let mut harness = Harness::new();
    let service = failing_service(&layer(&harness), || "busy".into());
    harness.store.inject_always_of("fail", Fault::Refuse);
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    harness.crash().await;
    call.await.unwrap().unwrap_err();
    assert_eq!(lines.count(&[POSSIBLE]), 0, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn lock_lost_before_the_keepers_end_is_reported_once() {
    let (lines, _guard) = Lines::capture();
    let mut harness = Harness::new();
    let layer = layer(&harness).on_lost(OnLost::Notify);
    let (service, mut handle) = harness.mock_service(layer);
    let _call = service.start(request("p-1"));
    let (request, _respond) = handle.next_request().await.unwrap();
    harness.take_over("p-1").await;
    lock(&request).lost().await;
    harness.crash().await;
    lines.assert_one("WARN", "lock lost", &["cause=Superseded"]);
}

#[tokio::test(start_paused = true)]
async fn unguarded_run_in_an_outage_is_reported() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.store.inject_always(Fault::Refuse);
    let layer = harness.layer().with_fail_open_risking_duplicates(|_, _| true);
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    service.run("p-1").await.unwrap();
    let fields =
        ["record=payments/0@0".to_owned(), "namespace=\"payments\"".to_owned(), key_digest()];
    lines.assert_one("WARN", &possible("without_lock"), &fields);
}

#[tokio::test(start_paused = true)]
async fn given_up_record_is_named_with_its_namespace() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let layer: IdempotencyLayer<_> = harness.layer().on_exhausted(OnExhausted::GiveUp);
    let service = failing_service(&layer, || error::permanent("card expired").into());
    assert!(matches!(service.run("p-1").await, Ok(Outcome::GivenUp(_))));
    assert!(matches!(service.run("p-1").await, Ok(Outcome::GivenUp(_))));
    let fields = ["record=payments/0@0", "namespace=\"payments\"", "attempt"];
    lines.assert_one("WARN", "record given up without a dead letter", &fields);
    lines.assert_one("WARN", "request not processed: its key is FAILED", &fields);
}

#[tokio::test(start_paused = true)]
async fn step_that_cannot_be_recorded_is_named() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let service = harness.layer().layer(service_fn(async |request: Request<()>| {
        let step = lock(&request).step("rate", async || Ok::<_, BoxError>(f64::NAN)).await;
        step.map_err(|_| BoxError::from("no rate"))
    }));
    service.run("p-1").await.unwrap_err();
    let fields = ["record=payments/0@0", "namespace=\"payments\"", "attempt=1", "step=\"rate\""];
    lines.assert_one("WARN", "the result of a step cannot be recorded", &fields);
}
