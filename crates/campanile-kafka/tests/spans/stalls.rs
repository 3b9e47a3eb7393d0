//! A stalled partition is reported with the reason for its stall.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Record, Request, error};
use campanile_idempotency::{
    Guard, IdempotencyError, IdempotencyLayer, MemoryStore, Store, StoreError,
};
use campanile_kafka::{Consumer, RetryTopics};
use campanile_test::MockKafka;
use tower::{Service, ServiceBuilder, service_fn};

use crate::Written;
use crate::support::{Serving, consumer, mock, serve, until, until_committed};

const STILL: &str = "is stalled";

/// Creates a consumer that reports a stall at its second check.
fn told_soon(kafka: &MockKafka) -> Consumer {
    consumer(kafka.consumer_config("g"), "orders")
        .with_stall_warning(Duration::from_millis(500))
        .with_drain_timeout(Duration::ZERO)
}

fn one_that<F>(
    handle: impl Fn(Record) -> F + Clone + Send + 'static,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send
where
    F: Future<Output = Result<(), BoxError>> + Send,
{
    service_fn(handle)
}

/// Waits for the first stall report and returns it.
async fn told(written: &Written) -> String {
    until("a stall is reported", || !written.lines("WARN", STILL).is_empty()).await;
    written.lines("WARN", STILL).swap_remove(0)
}

fn contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

async fn end(serving: Serving) {
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_hangs_is_told_with_its_record_and_so_is_that_it_goes_on() {
    let (written, _guard) = Written::begin();
    let kafka = mock("orders", 2, 3);
    let (finish, finished) = tokio::sync::watch::channel(false);
    let service = one_that(move |record| {
        let mut finished = finished.clone();
        async move {
            if (record.partition(), record.offset()) == (0, 1) {
                finished.wait_for(|finished| *finished).await?;
            }
            Ok(())
        }
    });
    let serving = serve(told_soon(&kafka), service);
    let line = told(&written).await;
    contains(&line, &["record=orders/0@1", "lag=2", r#"waits_for="its handler""#, "waits="]);
    assert!(!line.contains("error") && !line.contains("origin"), "{line}");
    let oldest = serving.handle().status().partitions.remove(0).oldest.unwrap();
    assert!(oldest >= Duration::from_millis(500), "{oldest:?}");
    finish.send(true).unwrap();
    until("the partition resumes", || !written.lines("INFO", "no longer stalled").is_empty()).await;
    contains(&written.lines("INFO", "no longer stalled")[0], &["partition=orders/0", "after="]);
    assert_eq!(serving.handle().status().partitions[0].oldest, None);
    end(serving).await;
    assert!(!written.text().contains("orders/1@"), "{}", written.text());
}

#[tokio::test(flavor = "current_thread")]
async fn a_record_that_backs_off_is_told_with_its_error() {
    let (written, _guard) = Written::begin();
    let kafka = mock("orders", 1, 1);
    let hour = Duration::from_secs(3600);
    let service =
        one_that(move |_| async move { Err(error::retry_after("no route", hour).into()) });
    let serving = serve(told_soon(&kafka), service);
    let line = told(&written).await;
    contains(&line, &["record=orders/0@0", r#"waits_for="the end of its backoff""#, "no route"]);
    end(serving).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_lock_that_is_held_elsewhere_is_told() {
    let (written, _guard) = Written::begin();
    let kafka = mock("orders", 1, 1);
    let store = Arc::new(MemoryStore::new());
    let (held, holds) = tokio::sync::oneshot::channel();
    let elsewhere = Guard::new(store.clone().boxed(), "orders").unwrap();
    let holder = tokio::spawn(async move {
        let work = async |_| {
            held.send(()).unwrap();
            std::future::pending::<Result<(), BoxError>>().await
        };
        elsewhere.run("k", work).await
    });
    holds.await.unwrap();
    let layer = IdempotencyLayer::new(store.boxed(), "orders", |_: &Request| "k").unwrap();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .service_fn(async |_: Request| Ok::<_, BoxError>(()));
    let serving = serve(told_soon(&kafka), service);
    contains(
        &told(&written).await,
        &["record=orders/0@0", "the lock of its key, held by another owner"],
    );
    end(serving).await;
    holder.abort();
}

#[tokio::test(flavor = "current_thread")]
async fn a_store_that_is_down_and_a_pause_are_told() {
    let (written, _guard) = Written::begin();
    let kafka = mock("orders", 1, 1);
    let service = one_that(|_| async {
        Err(IdempotencyError::Store(StoreError::unavailable("refused")).into())
    });
    let serving = serve(told_soon(&kafka), service);
    contains(&told(&written).await, &["record=orders/0@0", "the store, which is unavailable"]);
    end(serving).await;

    let (written, _guard) = Written::begin();
    let serving = serve(told_soon(&kafka), one_that(|_| async { Ok(()) }));
    serving.handle().pause();
    contains(&told(&written).await, &["record=orders/0@0", "the consumer to be resumed"]);
    serving.handle().resume();
    until_committed(&kafka.consumer_config("g"), "orders", &[1]).await;
    end(serving).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_service_that_is_not_ready_is_told_and_who_only_waits_for_a_free_place_is_not() {
    for (places, others) in [(1, 0), (10, 1)] {
        let (written, _guard) = Written::begin();
        let kafka = mock("orders", 2, 1);
        let service = ServiceBuilder::new()
            .concurrency_limit(1)
            .service(one_that(|_| std::future::pending()));
        let serving = serve(told_soon(&kafka).with_max_in_flight(places), service);
        let lines = |about: &str| {
            let lines = written.lines("WARN", STILL);
            lines.into_iter().filter(|line| line.contains(about)).count()
        };
        // By the second report about the record in flight, the other record was checked as often.
        until("the stall is reported twice", || lines("its handler") >= 2).await;
        assert_eq!(lines("its service to be ready").min(1), others, "{}", written.text());
        end(serving).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_copy_that_waits_for_its_time_is_not_told_and_a_thousand_stalls_are_told_by_ten() {
    let (written, _guard) = Written::begin();
    let kafka = mock("orders", 30, 1);
    kafka.create_topic("orders.later", 1).unwrap();
    let retries = RetryTopics::new().then("orders.later", Duration::from_secs(3600));
    let service = one_that(|record| async move {
        match record.partition() {
            0 => Err("busy".into()),
            _ => std::future::pending().await,
        }
    });
    let serving = serve(told_soon(&kafka).with_retry_topics(retries), service);
    // The copy waits in the retry topic from here on.
    until_committed(&kafka.consumer_config("g"), "orders", &[1]).await;
    until("the omitted partitions are reported", || {
        !written.lines("WARN", "further stalled partitions omitted").is_empty()
    })
    .await;
    contains(&written.lines("WARN", "further stalled partitions omitted")[0], &["partitions=19"]);
    assert_eq!(written.lines("WARN", STILL).iter().filter(|l| l.contains("record=")).count(), 10);
    let again = || written.lines("WARN", "further stalled partitions omitted").len() >= 2;
    until("the omitted partitions are reported again", again).await;
    assert!(!written.text().contains("record=orders.later"), "{}", written.text());
    end(serving).await;
}
