//! The events of an observer.

use std::time::Duration;

use campanile_core::{Fingerprint, Record, Request, key};
use campanile_idempotency::{IdempotencyConfig, ObserveLayer, Observer};
use campanile_test::faults::Fault;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::harness::{Harness, TestService, coordinates, failing_service, run_until_idle};
use crate::lines::Lines;

fn observer(harness: &Harness) -> Observer {
    let config = IdempotencyConfig::new("payments").with_max_attempts(3);
    Observer::new(&harness.keeper, config).unwrap()
}

async fn run(observer: &Observer, id: &'static str, result: Result<(), &'static str>) {
    assert_eq!(observer.run(id, coordinates(7), async || result).await, result);
    run_until_idle().await;
}

#[tokio::test(start_paused = true)]
async fn repeated_runs_are_reported_by_their_verdict() {
    let (lines, _guard) = Lines::capture();
    let observer = observer(&Harness::new());
    run(&observer, "p-1", Ok(())).await;
    assert_eq!(lines.count(&["observed"]), 0, "a new key is not reported at INFO: {lines:?}");
    run(&observer, "p-1", Ok(())).await;
    let origin = ["record=payments/0@7", "origin=\"redelivery\"", "completed_at=payments/0@7"];
    lines.assert_one("INFO", "observed a duplicate", &origin);
    lines.assert_one("INFO", "observed a duplicate", &["verdict=\"duplicate\""]);

    for _ in 0..2 {
        run(&observer, "p-2", Err("busy")).await;
    }
    let text = "observed a key with earlier attempts that did not complete";
    lines.assert_one("INFO", text, &["record=payments/0@7", "verdict=\"retry\""]);
    for _ in 0..2 {
        run(&observer, "p-2", Err("busy")).await;
    }
    let text = "observed a run of a key that is given up";
    lines.assert_one("WARN", text, &["namespace=\"payments\"", "verdict=\"given_up\""]);
}

#[tokio::test(start_paused = true)]
async fn other_payload_is_reported() {
    let (lines, _guard) = Lines::capture();
    let observer = observer(&Harness::new());
    for payload in [b"100", b"200"] {
        let fingerprint = Fingerprint::of(payload);
        let run = observer
            .run_with_fingerprint("p-1", fingerprint, coordinates(7), async || Ok::<_, &str>(()));
        run.await.unwrap();
        run_until_idle().await;
    }
    let text = "observed a key that was used for another payload";
    lines.assert_one("WARN", text, &["record=payments/0@7", "verdict=\"mismatch\""]);
}

#[tokio::test(start_paused = true)]
async fn run_during_a_backoff_is_reported() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let guard = failing_service(&harness.layer(), || "busy".into());
    guard.run("p-1").await.unwrap_err();
    run(&observer(&harness), "p-1", Ok(())).await;
    let text = "observed a run during its key's backoff";
    lines.assert_one("INFO", text, &["record=payments/0@7", "verdict=\"backing_off\""]);
}

#[tokio::test(start_paused = true)]
async fn overlapping_run_is_reported_also_if_the_other_has_no_lock() {
    let text = "observed a run that overlaps another run of its key";
    for fault in [None, Some(Fault::Refuse)] {
        let (lines, _guard) = Lines::capture();
        let harness = Harness::new();
        if let Some(fault) = fault {
            harness.store.inject_next(fault);
        }
        let observer = observer(&harness);
        let slow = async || {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, &str>(())
        };
        let second = async {
            sleep(Duration::from_millis(500)).await;
            run(&observer, "p-1", Ok(())).await;
        };
        let (first, ()) = tokio::join!(observer.run("p-1", coordinates(6), slow), second);
        first.unwrap();
        lines.assert_one("WARN", text, &["record=payments/0@7", "verdict=\"in_progress\""]);
    }
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_store_is_reported_with_its_error() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.store.inject_always(Fault::Refuse);
    run(&observer(&harness), "p-1", Ok(())).await;
    let text = "request not observed, because of the store";
    lines.assert_one("WARN", text, &["record=payments/0@7", "verdict=\"unavailable\"", "error="]);
}

#[tokio::test(start_paused = true)]
async fn request_without_a_valid_key_is_reported() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let layer = ObserveLayer::new(&harness.keeper, "payments", key::header("id")).unwrap();
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, &str>(())));
    let record = Record::builder("payments", 0, 7).build();
    service.oneshot(Request::new(record, ())).await.unwrap();
    let text = "observed a request without a valid key";
    lines.assert_one("WARN", text, &["record=payments/0@7", "verdict=\"missing_key\""]);
}
