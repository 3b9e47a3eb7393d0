//! A stalled partition is reported with the reason for its stall.

use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, error};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, MemoryStore, Runner, StoreError};
use campanile_kafka::{Consumer, RetryTopics};
use campanile_test::MockKafka;
use tower::{Service, ServiceBuilder, service_fn};

use crate::CapturedLog;
use crate::support::{Serving, consumer, mock, serve, until, until_committed};

const STALLED: &str = "is stalled";

/// Creates a consumer that reports a stall at its second check.
fn with_short_stall_warning(kafka: &MockKafka) -> Consumer {
    consumer(kafka.consumer_config("g"), "orders")
        .with_stall_warning(Duration::from_millis(500))
        .with_drain_timeout(Duration::ZERO)
}

fn service_with<F>(
    handle: impl Fn(Record) -> F + Clone + Send + 'static,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send
where
    F: Future<Output = Result<(), BoxError>> + Send,
{
    service_fn(handle)
}

async fn first_stall(log: &CapturedLog) -> String {
    until("a stall is reported", || !log.lines("WARN", STALLED).is_empty()).await;
    log.lines("WARN", STALLED).swap_remove(0)
}

/// Waits for the report of a record that is retried. A report during a retry says that it waits for its
/// handler.
async fn until_stalled(log: &CapturedLog, parts: &[&str]) {
    let is_reported = |line: &String| parts.iter().all(|part| line.contains(part));
    until("the reason of the stall is reported", || {
        log.lines("WARN", STALLED).iter().any(is_reported)
    })
    .await;
}

fn contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// Counts how many of the first `count` stalls have a line of their own, and how many were omitted.
/// Returns `None` if there are not as many yet.
fn logged_and_omitted(log: &CapturedLog, count: usize) -> Option<(usize, usize)> {
    let (mut logged, mut omitted) = (0, 0);
    for line in log.lines("WARN", "stalled") {
        match line.split_once("further stalled partitions omitted partitions=") {
            Some((_, number)) => omitted += number.trim().parse::<usize>().unwrap(),
            None => logged += 1,
        }
        if logged + omitted >= count {
            return Some((logged, omitted));
        }
    }
    None
}

async fn stop(serving: Serving) {
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn hanging_handler_is_logged_with_its_record_until_it_resumes() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 2, 3);
    let (finish, finished) = tokio::sync::watch::channel(false);
    let service = service_with(move |record| {
        let mut finished = finished.clone();
        async move {
            if (record.partition(), record.offset()) == (0, 1) {
                finished.wait_for(|finished| *finished).await?;
            }
            Ok(())
        }
    });
    let serving = serve(with_short_stall_warning(&kafka), service);
    let line = first_stall(&log).await;
    contains(&line, &["record=orders/0@1", "lag=2", r#"waits_for="its handler""#, "waits="]);
    assert!(!line.contains("error") && !line.contains("origin"), "{line}");
    let oldest = serving.handle().status().partitions.remove(0).oldest_age.unwrap();
    assert!(oldest >= Duration::from_millis(500), "{oldest:?}");
    finish.send(true).unwrap();
    until("the partition resumes", || !log.lines("INFO", "no longer stalled").is_empty()).await;
    contains(&log.lines("INFO", "no longer stalled")[0], &["partition=orders/0", "after="]);
    let oldest = || serving.handle().status().partitions[0].oldest_age;
    until("no record is the oldest", || oldest().is_none()).await;
    stop(serving).await;
    assert!(!log.text().contains("orders/1@"), "{}", log.text());
}

#[tokio::test(flavor = "current_thread")]
async fn record_in_backoff_is_logged_with_its_error() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 1, 1);
    let hour = Duration::from_secs(3600);
    let service =
        service_with(move |_| async move { Err(error::retry_after("no route", hour).into()) });
    let serving = serve(with_short_stall_warning(&kafka), service);
    let line = first_stall(&log).await;
    contains(&line, &["record=orders/0@0", r#"waits_for="the end of its backoff""#, "no route"]);
    stop(serving).await;
}

#[tokio::test(flavor = "current_thread")]
async fn lock_held_by_another_owner_is_logged() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 1, 1);
    let store = MemoryStore::new();
    let (held, holds) = tokio::sync::oneshot::channel();
    let elsewhere = Runner::new(store.clone(), "orders").unwrap();
    let holder = tokio::spawn(async move {
        let work = async |_| {
            held.send(()).unwrap();
            std::future::pending::<Result<(), BoxError>>().await
        };
        elsewhere.run("k", work).await
    });
    holds.await.unwrap();
    let layer = IdempotencyLayer::new(store, "orders", |_: &Request| "k").unwrap();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(async |_: Request| Ok::<_, BoxError>(()));
    let serving = serve(with_short_stall_warning(&kafka), service);
    until_stalled(&log, &["record=orders/0@0", "the lock of its key, held by another owner"]).await;
    stop(serving).await;
    holder.abort();
}

#[tokio::test(flavor = "current_thread")]
async fn unavailable_store_and_pause_are_logged() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 1, 1);
    let service = service_with(|_| async {
        Err(IdempotencyError::Store(StoreError::unavailable("refused")).into())
    });
    let serving = serve(with_short_stall_warning(&kafka), service);
    until_stalled(&log, &["record=orders/0@0", "the store, which is unavailable"]).await;
    stop(serving).await;

    let (log, _guard) = CapturedLog::start();
    let serving = serve(with_short_stall_warning(&kafka), service_with(|_| async { Ok(()) }));
    serving.handle().pause();
    contains(&first_stall(&log).await, &["record=orders/0@0", "the consumer to be resumed"]);
    serving.handle().resume();
    until_committed(&kafka.consumer_config("g"), "orders", &[1]).await;
    stop(serving).await;
}

#[tokio::test(flavor = "current_thread")]
async fn unready_service_is_logged_and_in_flight_limit_is_not() {
    for (places, others) in [(1, 0), (10, 1)] {
        let (log, _guard) = CapturedLog::start();
        let kafka = mock("orders", 2, 1);
        let service = ServiceBuilder::new()
            .concurrency_limit(1)
            .service(service_with(|_| std::future::pending()));
        let serving = serve(with_short_stall_warning(&kafka).with_max_in_flight(places), service);
        let lines = |about: &str| {
            let lines = log.lines("WARN", STALLED);
            lines.into_iter().filter(|line| line.contains(about)).count()
        };
        // By the second report about the record in flight, the other record was checked as often.
        until("the stall is reported twice", || lines("its handler") >= 2).await;
        assert_eq!(lines("its service to be ready").min(1), others, "{}", log.text());
        stop(serving).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn waiting_copy_is_no_stall_and_stall_logs_are_capped() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 30, 1);
    kafka.create_topic("orders.later", 1).unwrap();
    let retries = RetryTopics::new().then("orders.later", Duration::from_secs(3600));
    let service = service_with(|record| async move {
        match record.partition() {
            0 => Err("busy".into()),
            _ => std::future::pending().await,
        }
    });
    let serving = serve(with_short_stall_warning(&kafka).with_retry_topics(retries), service);
    // The copy waits in the retry topic from here on.
    until_committed(&kafka.consumer_config("g"), "orders", &[1]).await;
    let copies = || {
        let partitions = serving.handle().status().partitions;
        partitions.into_iter().find(|it| &*it.topic == "orders.later").unwrap()
    };
    until("the copy is received", || copies().buffered == 1).await;
    let all = || logged_and_omitted(&log, 29);
    until("all stalled partitions are reported", || all().is_some()).await;
    // Two checks report them if some of the records arrived in between.
    let (logged, omitted) = all().unwrap();
    assert!(logged <= 20 && omitted >= 9, "{logged} and {omitted}: {}", log.text());
    let again = || logged_and_omitted(&log, 2 * 29).is_some();
    until("all stalled partitions are reported again", again).await;
    assert!(!log.text().contains("record=orders.later"), "{}", log.text());
    assert_eq!((copies().buffered, copies().oldest_age), (1, None));
    stop(serving).await;
}
