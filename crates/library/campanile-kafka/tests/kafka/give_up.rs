//! Records that are given up: the consumer either stops, which loses nothing, or skips them, which
//! is reported.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, error, key};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore,
};
use campanile_kafka::{ConsumerError, OnGiveUp};
use campanile_test::faults::{Fault, FaultyStore};
use campanile_test::{Message, MockKafka};
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, service_fn};

use crate::support::{committed, consumer, serve, until, until_committed};

#[derive(Clone, serde::Deserialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) fails: bool,
    #[serde(default)]
    permanent: bool,
}

/// The outcomes returned by the layer, by the record's offset.
pub(crate) type Outcomes = Arc<Mutex<Vec<(i64, &'static str)>>>;

fn outcome(of: &Outcome<()>) -> &'static str {
    match of {
        Outcome::Processed(()) => "processed",
        Outcome::Duplicate(_) => "duplicate",
        Outcome::GivenUp(_) => "given_up",
        _ => "another",
    }
}

/// A handler that does what the order says, under the idempotency layer.
pub(crate) fn service(
    keeper: &LockKeeper,
    attempts: u32,
    outcomes: &Outcomes,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    let layer = IdempotencyLayer::new(
        keeper,
        IdempotencyConfig::new("orders").with_max_attempts(attempts).with_backoff(backoff),
        key::field(|o: &Order| &o.id),
    )
    .unwrap();
    let handler = service_fn(async |request: Request<Order>| match request.body() {
        Order { permanent: true, .. } => Err(BoxError::from(error::permanent("card expired"))),
        Order { fails: true, .. } => Err("gateway is busy".into()),
        _ => Ok(()),
    });
    let mut inner = ServiceBuilder::new().layer(DecodeLayer::json()).layer(layer).service(handler);
    let outcomes = outcomes.clone();
    service_fn(move |record: Record| {
        let (call, outcomes) = (inner.call(record.clone()), outcomes.clone());
        async move {
            let answer = call.await?;
            outcomes.lock().unwrap().push((record.offset(), outcome(&answer)));
            Ok(())
        }
    })
}

pub(crate) fn keeper() -> LockKeeper {
    LockKeeper::new(MemoryStore::new()).unwrap()
}

pub(crate) fn kafka(payloads: &[&str]) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let message = |payload: &&str| Message::to("orders").partition(0).payload(*payload);
    kafka.producer().produce_all(payloads.iter().map(message)).unwrap();
    kafka
}

/// Formats the error and all its sources.
fn text(error: &ConsumerError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

pub(crate) const GOOD: &str = r#"{"id":"a"}"#;
pub(crate) const FAILS: &str = r#"{"id":"b","fails":true}"#;
pub(crate) const PERMANENT: &str = r#"{"id":"c","permanent":true}"#;
pub(crate) const LAST: &str = r#"{"id":"z"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_policy_stops_at_an_untriable_record() {
    for bad in ["no json", r#"{"id":""}"#] {
        let kafka = kafka(&[GOOD, bad, LAST]);
        let config = kafka.consumer_config("g");
        let service = service(&keeper(), 3, &Outcomes::default());
        let error = serve(consumer(config.clone(), "orders"), service).ended().await.unwrap_err();
        let ConsumerError::Stopped { at, .. } = &error else { panic!("{error:?}") };
        assert_eq!(at.to_string(), "orders/0@1");
        let text = text(&error);
        assert!(text.contains("orders/0@1") && text.contains("OnGiveUp::Skip"), "{text}");
        assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_policy_stops_until_more_attempts_are_allowed() {
    let kafka = kafka(&[GOOD, FAILS, LAST]);
    let config = kafka.consumer_config("g");
    let (keeper, outcomes) = (keeper(), Outcomes::default());
    // The last attempt fails; afterwards no attempt is left. The lock must be released both times,
    // or the next start would have to wait until it expires.
    for expected in ["gateway is busy", "no attempts left after 2"] {
        let service = service(&keeper, 2, &outcomes);
        let error = serve(consumer(config.clone(), "orders"), service).ended().await.unwrap_err();
        let text = text(&error);
        assert!(text.contains(expected) && text.contains("with_max_attempts"), "{text}");
        assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    }
    let service = service(&keeper, 3, &outcomes);
    let error = serve(consumer(config.clone(), "orders"), service).ended().await.unwrap_err();
    assert!(text(&error).contains("gateway is busy"), "the third attempt: {error:?}");
    assert_eq!(*outcomes.lock().unwrap(), [(0, "processed")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_at_a_permanent_error_leaves_the_other_attempts() {
    let kafka = kafka(&[PERMANENT]);
    let (keeper, outcomes) = (keeper(), Outcomes::default());
    for attempt in ["attempt 1 of 3 failed", "attempt 2 of 3 failed"] {
        let consumer = consumer(kafka.consumer_config("g"), "orders");
        let error = serve(consumer, service(&keeper, 3, &outcomes)).ended().await.unwrap_err();
        let text = text(&error);
        assert!(text.contains(attempt) && text.contains("card expired"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_records_become_failed_and_are_committed() {
    let payloads =
        [GOOD, FAILS, "no json", r#"{"id":""}"#, PERMANENT, GOOD, FAILS, PERMANENT, LAST];
    let kafka = kafka(&payloads);
    let config = kafka.consumer_config("g");
    let outcomes = Outcomes::default();
    let consumer = consumer(config.clone(), "orders").on_give_up(OnGiveUp::Skip);
    let serving = serve(consumer, service(&keeper(), 2, &outcomes));
    until_committed(&config, "orders", &[9]).await;
    let summary = serving.stop().await.unwrap();
    let seen = outcomes.lock().unwrap().clone();
    // The second record of each key shows the result of the first one.
    let expected =
        [(0, "processed"), (5, "duplicate"), (6, "given_up"), (7, "given_up"), (8, "processed")];
    assert_eq!(seen, expected);
    assert_eq!((summary.processed, summary.skipped, summary.retried), (5, 4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_record_of_an_earlier_process_is_skipped() {
    let kafka = kafka(&[FAILS, FAILS, LAST]);
    let config = kafka.consumer_config("g");
    let (keeper, outcomes) = (keeper(), Outcomes::default());
    let stopping = serve(consumer(config.clone(), "orders"), service(&keeper, 1, &outcomes));
    stopping.ended().await.unwrap_err();

    let consumer = consumer(config.clone(), "orders").on_give_up(OnGiveUp::Skip);
    let serving = serve(consumer, service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(*outcomes.lock().unwrap(), [(1, "given_up"), (2, "processed")]);
    assert_eq!((summary.processed, summary.skipped), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_key_with_other_payload_is_given_up_untried() {
    let kafka = kafka(&[GOOD, r#"{"id":"a","fails":true}"#, LAST]);
    let config = kafka.consumer_config("g");
    let key = key::field(|o: &Order| &o.id).fingerprint_by(|r: &Request<Order>, hasher| {
        hasher.update([r.body().fails.into()]);
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), "orders", key).unwrap();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = calls.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::json()).layer(layer).service_fn(
        move |request: Request<Order>| {
            called.lock().unwrap().push(request.record().offset());
            async { Ok::<_, BoxError>(()) }
        },
    );
    // By default, the consumer stops at the record.
    let stopped = serve(consumer(config.clone(), "orders"), service.clone()).ended().await;
    let error = stopped.unwrap_err();
    let ConsumerError::Stopped { at, .. } = &error else { panic!("{error:?}") };
    assert_eq!(at.to_string(), "orders/0@1");
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);

    let consumer = consumer(config.clone(), "orders").on_give_up(OnGiveUp::Skip);
    let serving = serve(consumer, service);
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(*calls.lock().unwrap(), [0, 2]);
    assert_eq!((summary.processed, summary.skipped), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skip_and_stop_markers_work_without_the_layer() {
    let kafka = kafka(&["skip", "good", "stop", "good"]);
    let config = kafka.consumer_config("g");
    let service = service_fn(async |record: Record| match &record.payload().unwrap()[..] {
        b"skip" => Err(BoxError::from(error::skip("of no interest"))),
        b"stop" => Err(error::stop("no database").into()),
        _ => Ok(()),
    });
    let error = serve(consumer(config.clone(), "orders"), service).ended().await.unwrap_err();
    let ConsumerError::Stopped { at, .. } = &error else { panic!("{error:?}") };
    assert_eq!(at.offset, 2);
    assert!(text(&error).contains("no database"));
    assert_eq!(committed(&config, "orders", 1), [Some(2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_skipped_by_the_handler_counts_as_processed() {
    let kafka = kafka(&["of no interest"]);
    let config = kafka.consumer_config("g");
    let layer = IdempotencyLayer::new(keeper(), "orders", key::coordinates()).unwrap();
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let recorded = outcomes.clone();
    let service = ServiceBuilder::new()
        .map_response(move |answer| recorded.lock().unwrap().push(outcome(&answer)))
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(async |_: Request| Err(BoxError::from(error::skip("of no interest"))));
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(*outcomes.lock().unwrap(), ["given_up"]);
    assert_eq!((summary.processed, summary.skipped), (1, 0));
}

/// A handler that may hang, and records its attempts.
fn attempts(
    keeper: &LockKeeper,
    attempts: &Arc<Mutex<Vec<u32>>>,
    hangs: bool,
) -> impl Service<Record, Response = Outcome<()>, Error = BoxError, Future: Send> + Clone + Send + use<>
{
    let seen = attempts.clone();
    let layer = IdempotencyLayer::new(keeper, "orders", key::field(|o: &Order| &o.id)).unwrap();
    ServiceBuilder::new().layer(DecodeLayer::json()).layer(layer).service_fn(
        move |request: Request<Order>| {
            seen.lock().unwrap().push(request.lock().unwrap().attempt());
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok::<_, BoxError>(())
            }
        },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_releases_locks_and_restores_attempts() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let (keeper, attempts_seen) = (keeper(), Arc::default());
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let serving = serve(short, attempts(&keeper, &attempts_seen, true));
    until("the handler hangs", || attempts_seen.lock().unwrap().len() == 1).await;
    assert_eq!(serving.stop().await.unwrap().unfinished, 1);

    let serving =
        serve(consumer(config.clone(), "orders"), attempts(&keeper, &attempts_seen, false));
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(*attempts_seen.lock().unwrap(), [1, 1], "the shutdown counts no attempt");
    assert_eq!((summary.processed, summary.inconclusive), (1, 0), "the lock is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_wait_for_a_lock_release_is_bounded() {
    let kafka = kafka(&[GOOD]);
    let store = FaultyStore::new(MemoryStore::new());
    store.inject_next_of("release", Fault::HangReply);
    let (keeper, attempts_seen) = (LockKeeper::new(store.clone()).unwrap(), Arc::default());
    let short = consumer(kafka.consumer_config("g"), "orders")
        .with_drain_timeout(Duration::from_millis(50));
    let serving = serve(short, attempts(&keeper, &attempts_seen, true));
    until("the handler hangs", || attempts_seen.lock().unwrap().len() == 1).await;
    let start = Instant::now();
    serving.stop().await.unwrap();
    assert_eq!(store.count("release"), 1);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    store.release();
}
