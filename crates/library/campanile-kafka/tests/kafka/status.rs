//! The status reported by a handle.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{ConsumerStage, PartitionStatus};
use tokio::sync::Semaphore;
use tower::service_fn;

use crate::support::{Log, consumer, fill, gated, mock, serve, start, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_has_lag_watermark_and_held_records() {
    let kafka = mock("orders", 2, 10);
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let service = gated(&begun, &permits);
    let serve = consumer(kafka.consumer_config("g"), "orders").serve(service);
    let handle = serve.handle();
    let status = handle.status();
    assert_eq!((status.stage, status.partitions.len()), (ConsumerStage::Starting, 0));
    let serving = start(serve);

    let all = |check: &dyn Fn(&PartitionStatus) -> bool| {
        let partitions = handle.status().partitions;
        partitions.len() == 2 && partitions.iter().all(check)
    };
    until("all records are held", || all(&|p| p.buffered == 10)).await;
    begun.reaches(2).await;
    let status = handle.status();
    assert_eq!(status.stage, ConsumerStage::Serving);
    let names: Vec<_> = status.partitions.iter().map(|p| (&*p.topic, p.partition)).collect();
    assert_eq!(names, [("orders", 0), ("orders", 1)]);
    assert!(all(&|p| (p.lag, p.watermark) == (Some(10), None)), "{status:?}");

    permits.add_permits(8);
    begun.reaches(10).await;
    let mark = |p: &PartitionStatus| p.watermark.unwrap_or_default();
    until("the marks move", || handle.status().partitions.iter().map(mark).sum::<i64>() == 8).await;
    assert!(all(&|p| p.lag == Some(10 - mark(p) as u64) && p.buffered == p.lag.unwrap()));

    permits.add_permits(100);
    let done = |p: &PartitionStatus| (p.lag, p.watermark, p.buffered) == (Some(0), Some(10), 0);
    until("all records are finished", || all(&done)).await;
    assert!(all(&|p| (p.summary.received, p.summary.processed) == (10, 10)));
    assert_eq!(handle.status().summary.processed, 20);
    let summary = serving.stop().await.unwrap();
    let status = handle.status();
    assert_eq!(status.summary, summary, "it outlives the assignments");
    assert_eq!((status.stage, status.partitions.len()), (ConsumerStage::Ended, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_grows_while_no_record_finishes() {
    let kafka = mock("orders", 1, 1);
    let service = service_fn(|_: Record| std::future::pending::<Result<(), BoxError>>());
    // The budget is so small that later records are not fetched.
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_budget(1, 1 << 20)
        .with_drain_timeout(Duration::ZERO);
    let serving = serve(consumer, service);
    let handle = serving.handle();
    let lag = || handle.status().partitions.first().and_then(|p| p.lag);
    until("the lag counts the first record", || lag() == Some(1)).await;
    fill(&kafka, "orders", 1, 20);
    until("the lag counts the later records", || lag() == Some(21)).await;
    assert!(handle.status().partitions[0].buffered < 21);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stage_is_draining_then_ended_after_a_drop() {
    let kafka = mock("orders", 1, 1);
    let begun = Log::default();
    let seen = begun.clone();
    let service = service_fn(move |record: Record| {
        seen.push(&record);
        std::future::pending::<Result<(), BoxError>>()
    });
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_drain_timeout(Duration::from_secs(3600));
    let serving = serve(consumer, service);
    let handle = serving.handle();
    begun.reaches(1).await;
    handle.shutdown();
    until("the consumer drains", || handle.status().stage == ConsumerStage::Draining).await;
    within("the future is dropped", serving.drop()).await;
    until("serving has ended", || handle.status().stage == ConsumerStage::Ended).await;
}
