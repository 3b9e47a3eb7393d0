//! Each verdict.

use std::time::Duration;

use campanile_core::{BoxError, Fingerprint, Request, State};
use campanile_idempotency::policy::OnExhausted;
use campanile_idempotency::{IdempotencyError, ObserveLayer};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::{Observing, at, counted};
use crate::harness::{
    HOUR, Harness, TTL, TestService, failing_service, fingerprint_layer, layer_error,
    request_with_payload, run_until_idle,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn first_retry_and_exhaustion_are_told_apart() {
    let observing = Observing::new();
    // The layer that guards would allow three attempts.
    for _ in 0..5 {
        observing.fail("p-1").await;
        run_until_idle().await;
    }
    let verdicts = counted([("first", 1), ("retry", 2), ("given_up", 2)]);
    assert_eq!(observing.verdicts().await, verdicts);
    assert!(!observing.harness.entry("p-1").unwrap().has_permanent_failure());
}

#[tokio::test(start_paused = true)]
async fn duplicates_have_an_origin_and_an_age() {
    let observing = Observing::new();
    observing.run("p-1", 7).await.unwrap();
    sleep(100 * SECOND).await;
    observing.run("p-1", 7).await.unwrap();
    observing.run("p-1", 8).await.unwrap();
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("duplicate", 2)]));
    assert_eq!(observing.origins(), counted([("redelivery", 1), ("repeat", 1)]));
    let text = observing.metrics.render();
    let age = "campanile_observed_duplicate_age_sum{campanile_namespace=\"payments\",\
               campanile_observed_duplicate_origin=\"repeat\"} 100";
    assert!(text.contains(age), "{text}");
    // The entry is still that of the first run.
    let details = observing.harness.entry("p-1").unwrap().details().unwrap().clone();
    assert_eq!(details.coordinates().unwrap().offset, 7);
}

#[tokio::test(start_paused = true)]
async fn repeat_right_after_its_original_is_a_duplicate() {
    let observing = Observing::new();
    // The outcome of the first is not recorded when the second begins, and ends.
    observing.run("p-1", 7).await.unwrap();
    observing.run("p-1", 8).await.unwrap();
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("duplicate", 1)]));
    assert_eq!(observing.origins(), counted([("repeat", 1)]));
}

#[tokio::test(start_paused = true)]
async fn overlapping_runs_are_in_progress() {
    let observing = Observing::new();
    observing.start("p-1", 7, 10 * SECOND);
    run_until_idle().await;
    observing.run("p-1", 8).await.unwrap();
    let other = Observing::on(observing.harness.other_process());
    other.run("p-1", 9).await.unwrap();
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("in_progress", 1)]));
    assert_eq!(other.verdicts().await, counted([("in_progress", 1)]));
    sleep(HOUR).await;
    // The run that held the lock is the one that is recorded.
    let entry = observing.harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1));
    assert_eq!(entry.details().unwrap().coordinates().unwrap().offset, 7);
}

#[tokio::test(start_paused = true)]
async fn success_after_a_crash_is_recorded_once_the_lock_has_expired() {
    let mut crashed = Observing::new();
    crashed.start("p-1", 7, HOUR);
    run_until_idle().await;
    crashed.harness.crash().await;
    let observing = Observing::on(crashed.harness.other_process());
    observing.run("p-1", 7).await.unwrap();
    assert_eq!(observing.verdicts().await, counted([("in_progress", 1)]));
    assert_eq!(observing.state("p-1"), Some(State::Processing));
    sleep(2 * TTL).await;
    assert_eq!(observing.state("p-1"), Some(State::Completed));
    assert_eq!(observing.verdicts().await, counted([("in_progress", 1)]));
}

#[tokio::test(start_paused = true)]
async fn run_during_a_backoff_is_reported_and_recorded() {
    let observing = Observing::new();
    let guard = failing_service(&observing.harness.layer(), || "busy".into());
    guard.run("p-1").await.unwrap_err();
    guard.run("p-2").await.unwrap_err();
    observing.run("p-1", 7).await.unwrap();
    observing.fail("p-2").await;
    assert_eq!(observing.verdicts().await, counted([("backing_off", 2)]));
    sleep(HOUR).await;
    assert_eq!(observing.state("p-1"), Some(State::Completed));
    assert_eq!(observing.harness.entry("p-2").unwrap().attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn given_up_keys_stay_given_up() {
    let observing = Observing::new();
    let fail = || BoxError::from(campanile_core::error::permanent("no such account"));
    let guard = failing_service(&observing.harness.layer(), fail);
    // The lock for the dead letter is dropped: the key has no attempt left.
    drop(guard.run("p-1").await.unwrap_err());
    let layer = observing.harness.layer().on_exhausted(OnExhausted::GiveUp);
    failing_service(&layer, fail).run("p-2").await.unwrap();
    sleep(HOUR).await;
    for id in ["p-1", "p-2"] {
        observing.run(id, 7).await.unwrap();
    }
    assert_eq!(observing.verdicts().await, counted([("given_up", 2)]));
    assert_eq!(observing.state("p-2"), Some(State::Failed));
    let entry = observing.harness.entry("p-1").unwrap();
    assert!(entry.has_permanent_failure());
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn other_payload_is_a_mismatch() {
    let observing = Observing::new();
    let by_payload =
        campanile_core::key::header("id").fingerprint_by(|request: &Request<()>, parts| {
            parts.update(request.record().payload().unwrap());
        });
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let keeper = &observing.harness.keeper;
    let layer = metrics::with_local_recorder(&recorder, || {
        ObserveLayer::new(keeper, "payments", by_payload).unwrap()
    });
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    for cents in ["100", "200"] {
        service.clone().oneshot(request_with_payload("p-1", cents)).await.unwrap();
        run_until_idle().await;
    }
    let observing = Observing { metrics, ..observing };
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("mismatch", 1)]));
}

#[tokio::test(start_paused = true)]
async fn guard_refuses_other_payload_than_observed_function() {
    let observing = Observing::new();
    for cents in ["100", "200"] {
        let fingerprint = Fingerprint::of(cents.as_bytes());
        let run = observing
            .observer
            .run_with_fingerprint("p-1", fingerprint, None, async || Ok::<_, String>(cents));
        assert_eq!(run.await, Ok(cents));
        run_until_idle().await;
    }
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("mismatch", 1)]));

    let guard = fingerprint_layer(&observing.harness);
    let guard = guard.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let run = |cents| guard.clone().oneshot(request_with_payload("p-1", cents));
    assert!(run("100").await.unwrap().is_duplicate());
    let other = run("200").await;
    assert!(matches!(layer_error(&other), IdempotencyError::Mismatch { .. }), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn missing_and_invalid_keys_are_counted() {
    let harness = Harness::new();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let key = |request: &Request<()>| match request.record().offset() {
        0 => Ok(None),
        1 => Err("no identifier"),
        2 => panic!("test panic"),
        _ => Ok(Some("p-1")),
    };
    let layer = metrics::with_local_recorder(&recorder, || {
        ObserveLayer::new(&harness.keeper, "payments", key).unwrap()
    });
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    for offset in 0..4 {
        assert_eq!(service.clone().oneshot(at("", offset)).await.unwrap(), "done");
    }
    let observing = Observing { metrics, ..Observing::on(harness) };
    let verdicts = counted([("missing_key", 1), ("invalid_key", 2), ("first", 1)]);
    assert_eq!(observing.verdicts().await, verdicts);
}

#[tokio::test(start_paused = true)]
async fn keeper_that_shuts_down_observes_nothing() {
    let observing = Observing::new();
    observing.harness.assert_settled().await;
    assert_eq!(observing.run("p-1", 0).await.unwrap(), "done");
    assert_eq!(observing.verdicts().await, counted([("not_observed", 1)]));
}

#[tokio::test(start_paused = true)]
async fn store_that_refuses_is_unavailable() {
    let observing = Observing::new();
    observing.harness.store.inject_always(Fault::Refuse);
    assert_eq!(observing.run("p-1", 0).await.unwrap(), "done");
    assert_eq!(observing.verdicts().await, counted([("unavailable", 1)]));
}
