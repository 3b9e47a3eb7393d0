//! Requests that are only observed: nothing is changed or delayed, and the entries are those of a layer
//! that guards.

mod faults;
mod verdicts;

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Record, Request, State, key};
use campanile_idempotency::{IdempotencyConfig, ObserveLayer, Observer};
use futures_util::FutureExt;
use metrics::with_local_recorder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::harness::{Harness, TestService, coordinates, request, run_until_idle};

/// An observer in a process, with its metrics.
struct Observing {
    harness: Harness,
    layer: ObserveLayer<key::Key<key::Header>>,
    observer: Observer,
    metrics: PrometheusHandle,
}

impl Observing {
    fn new() -> Self {
        Self::on(Harness::new())
    }

    fn on(harness: Harness) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = recorder.handle();
        let config = || IdempotencyConfig::new("payments").with_max_attempts(3);
        let keeper = &harness.keeper;
        let (layer, observer) = with_local_recorder(&recorder, || {
            let layer = ObserveLayer::new(keeper, config(), key::header("id")).unwrap();
            (layer, Observer::new(keeper, config()).unwrap())
        });
        Self { harness, layer, observer, metrics }
    }

    /// Runs a request with this key at this offset, through the layer.
    async fn run(&self, id: &str, offset: i64) -> Result<&'static str, BoxError> {
        let service = self.layer.layer(service_fn(async |_: Request<()>| Ok("done")));
        service.oneshot(at(id, offset)).await
    }

    /// Starts a request whose handler takes this long.
    fn start(&self, id: &str, offset: i64, takes: Duration) {
        let service = self.layer.layer(service_fn(move |_: Request<()>| async move {
            sleep(takes).await;
            Ok::<_, BoxError>("done")
        }));
        drop(tokio::spawn(service.oneshot(at(id, offset))));
    }

    /// Fails a request.
    async fn fail(&self, id: &str) {
        let service = self.layer.layer(service_fn(async |_: Request<()>| Err::<(), _>("busy")));
        assert_eq!(service.oneshot(at(id, 0)).await, Err("busy"));
    }

    /// The numbers of verdicts so far, without those that are zero.
    async fn verdicts(&self) -> BTreeMap<String, u64> {
        run_until_idle().await;
        self.counts("campanile_observed_requests{", "campanile_observed_verdict")
    }

    /// The numbers of duplicates so far, by origin.
    fn origins(&self) -> BTreeMap<String, u64> {
        let origin = "campanile_observed_duplicate_origin";
        self.counts("campanile_observed_duplicate_age_count{", origin)
    }

    fn counts(&self, metric: &str, label: &str) -> BTreeMap<String, u64> {
        let text = self.metrics.render();
        let samples = text.lines().filter(|line| line.starts_with(metric));
        let parse = |line: &str| {
            let (series, count) = line.rsplit_once(' ')?;
            let value = series.split_once(&format!("{label}=\""))?.1.split_once('"')?.0;
            Some((value.to_owned(), count.parse().ok().filter(|count| *count > 0)?))
        };
        samples.filter_map(parse).collect()
    }

    fn state(&self, id: &str) -> Option<State> {
        self.harness.state(id)
    }
}

fn at(id: &str, offset: i64) -> Request<()> {
    Request::new(Record::builder("payments", 0, offset).header("id", id.to_owned()).build(), ())
}

fn counted<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(value, count)| (value.to_owned(), count)).collect()
}

#[tokio::test(start_paused = true)]
async fn response_and_error_are_unchanged() {
    /// An error that is no `BoxError`.
    #[derive(Debug, PartialEq, Eq)]
    struct Declined(u32);

    impl std::fmt::Display for Declined {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "declined: {}", self.0)
        }
    }

    let observing = Observing::new();
    for _ in 0..2 {
        let service =
            observing.layer.layer(service_fn(async |_: Request<()>| Err::<(), _>(Declined(7))));
        assert_eq!(service.oneshot(request("p-1")).await, Err(Declined(7)));
        run_until_idle().await;
    }
    let entry = observing.harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 2));
    assert_eq!(entry.error().as_deref(), Some("declined: 7"));

    // A key that is COMPLETED is answered by the handler.
    for _ in 0..2 {
        assert_eq!(observing.run("p-2", 1).await.unwrap(), "done");
        run_until_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_inner_service() {
    let observing = Observing::new();
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, ()>();
    handle.allow(0);
    let mut service = observing.layer.layer(inner);
    assert!(service.ready().now_or_never().is_none());
    handle.allow(1);
    assert!(service.ready().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn completed_entry_is_that_of_the_guard() {
    let observing = Observing::new();
    observing.run("p-1", 7).await.unwrap();
    run_until_idle().await;
    let entry = observing.harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1));
    let details = entry.details().unwrap();
    assert_eq!(details.key(), Some(&b"p-1"[..]));
    assert!(details.instance().is_some());
    assert_eq!(details.coordinates(), Some(coordinates(7)));

    let (guard, _handler) = observing.harness.mock_service(observing.harness.layer());
    assert!(guard.run("p-1").await.unwrap().is_duplicate());
    observing.harness.assert_settled().await;
}

#[tokio::test(start_paused = true)]
async fn guard_retries_an_observed_failure_at_once() {
    let observing = Observing::new();
    observing.fail("p-1").await;
    run_until_idle().await;
    let guard =
        observing.harness.layer().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    assert_eq!(guard.run("p-1").await.unwrap(), Outcome::Processed(()));
}

#[tokio::test(start_paused = true)]
async fn function_is_observed_like_a_request() {
    let observing = Observing::new();
    for offset in [7, 7, 8] {
        let ran =
            observing.observer.run("p-1", coordinates(offset), async || Ok::<_, String>(offset));
        assert_eq!(ran.await, Ok(offset));
        run_until_idle().await;
    }
    let ran = observing.observer.run("p-1", None, async || Err::<(), _>("declined"));
    assert_eq!(ran.await, Err("declined"));
    let ran = observing.observer.run("", None, async || Err::<(), _>("declined"));
    assert_eq!(ran.await, Err("declined"));
    let verdicts = counted([("first", 1), ("duplicate", 3), ("missing_key", 1)]);
    assert_eq!(observing.verdicts().await, verdicts);
    let origins = counted([("redelivery", 1), ("repeat", 1), ("unknown", 1)]);
    assert_eq!(observing.origins(), origins);
}

#[tokio::test(start_paused = true)]
async fn record_needs_no_room_for_a_lock() {
    let observing = Observing::new();
    let mut service = observing.layer.layer(service_fn(async |_: Record| Ok::<_, String>(1)));
    let record = Record::builder("payments", 0, 7).header("id", "p-1").build();
    for _ in 0..2 {
        assert_eq!(service.ready().await.unwrap().call(record.clone()).await, Ok(1));
        run_until_idle().await;
    }
    assert_eq!(observing.origins(), counted([("redelivery", 1)]));
}

#[tokio::test(start_paused = true)]
async fn lock_is_renewed_while_the_handler_runs() {
    let observing = Observing::new();
    observing.start("p-1", 0, Duration::from_secs(300));
    sleep(Duration::from_secs(200)).await;
    assert!(observing.harness.store.count("renew") > 0);
    assert_eq!(observing.state("p-1"), Some(State::Processing));
    sleep(Duration::from_secs(101)).await;
    assert_eq!(observing.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn unfinished_observations_are_bounded() {
    let observing = Observing::new();
    let hanging = observing
        .layer
        .layer(service_fn(async |_: Request<()>| pending::<Result<(), String>>().await));
    let calls: Vec<_> =
        (0..5000).map(|n| tokio::spawn(hanging.clone().oneshot(at(&n.to_string(), n)))).collect();
    let start = Instant::now();
    assert_eq!(observing.verdicts().await, counted([("first", 4096), ("not_observed", 904)]));
    assert_eq!(observing.run("p-1", 0).await.unwrap(), "done");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(observing.state("p-1"), None);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    run_until_idle().await;
    observing.run("p-1", 0).await.unwrap();
    run_until_idle().await;
    assert_eq!(observing.state("p-1"), Some(State::Completed));
}
