//! Pauses of topics and partitions.

use std::sync::Arc;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, Handle, PartitionStatus, ProcessingOrder};
use tokio::sync::Semaphore;
use tower::{Service, service_fn};

use crate::support::{
    Log, committed, consumer, fill, gated, mock, serve, start, until, until_committed,
};

fn logging(
    log: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let log = log.clone();
    service_fn(move |record: Record| {
        log.push(&record);
        async { Ok(()) }
    })
}

/// Waits until a check holds for the status of a partition.
async fn until_partition(
    handle: &Handle,
    topic: &str,
    partition: i32,
    check: impl Fn(&PartitionStatus) -> bool,
) {
    let is_it = |p: &&PartitionStatus| &*p.topic == topic && p.partition == partition;
    until("the partition has the expected status", || {
        handle.status().partitions.iter().find(is_it).is_some_and(&check)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_partition_waits_while_others_are_processed() {
    for order in [ProcessingOrder::by_partition(), ProcessingOrder::unordered()] {
        let kafka = mock("orders", 2, 10);
        let config = kafka.consumer_config("g");
        let log = Log::default();
        let serve = consumer(config.clone(), "orders").with_order(order).serve(logging(&log));
        let handle = serve.handle();
        handle.pause_partition("orders", 1);
        let serving = start(serve);
        until_partition(&handle, "orders", 0, |p| p.watermark == Some(10) && !p.paused).await;
        until_partition(&handle, "orders", 1, |p| p.buffered == 10 && p.paused).await;
        // The pause of the consumer ends without the partition's.
        handle.pause();
        handle.resume();
        fill(&kafka, "orders", 2, 1);
        until_partition(&handle, "orders", 0, |p| p.watermark == Some(11)).await;
        assert_eq!(log.of(1), [0; 0]);
        handle.resume_partition("orders", 1);
        until_committed(&config, "orders", &[11, 11]).await;
        assert!(handle.status().partitions.iter().all(|p| !p.paused));
        serving.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_lets_the_record_in_flight_finish_and_starts_no_other() {
    let kafka = mock("orders", 2, 2);
    let config = kafka.consumer_config("g");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let serving = serve(consumer(config.clone(), "orders"), gated(&begun, &permits));
    let handle = serving.handle();
    begun.reaches(2).await;
    handle.pause_partition("orders", 0);
    permits.add_permits(10);
    until_committed(&config, "orders", &[1, 2]).await;
    assert_eq!(begun.of(0), [0]);
    handle.resume_partition("orders", 0);
    until_committed(&config, "orders", &[2, 2]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_of_a_topic_survives_a_rebalance() {
    let kafka = mock("orders", 2, 10);
    kafka.create_topic("refunds", 1).unwrap();
    fill(&kafka, "refunds", 1, 10);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let both = |log: &Log| {
        let consumer = Consumer::new(config.clone()).unwrap();
        consumer.subscribe(["orders", "refunds"]).serve(logging(log))
    };
    let serve = both(&log);
    let handle = serve.handle();
    handle.pause_topic("orders");
    let serving = start(serve);
    until_committed(&config, "refunds", &[10]).await;

    // Another member takes a part of the partitions and hands them back.
    let other = both(&Log::default());
    let other_handle = other.handle();
    other_handle.pause_topic("orders");
    let other = start(other);
    let paused = |handle: &Handle| {
        handle.status().partitions.iter().filter(|p| p.paused && &*p.topic == "orders").count()
    };
    until("another member has a partition", || !other_handle.status().partitions.is_empty()).await;
    other.stop().await.unwrap();
    until("all partitions are back", || handle.status().partitions.len() == 3).await;
    assert_eq!(paused(&handle), 2);
    assert_eq!(committed(&config, "orders", 2), [None; 2]);
    handle.resume_topic("orders");
    until_committed(&config, "orders", &[10, 10]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_partitions_leave_the_budget_to_others() {
    let kafka = mock("orders", 3, 200);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serve = consumer(config.clone(), "orders").with_budget(20, 1 << 20).serve(logging(&log));
    let handle = serve.handle();
    [0, 1].iter().for_each(|&partition| handle.pause_partition("orders", partition));
    let serving = start(serve);
    until_partition(&handle, "orders", 2, |p| p.watermark == Some(200)).await;
    // Beyond half of the budget, each is read from at most once, and a read takes an eighth.
    let held =
        handle.status().partitions.iter().filter(|p| p.paused).map(|p| p.buffered).sum::<u64>();
    assert!(held <= 10 + 2 * 2, "{held}");
    [0, 1].iter().for_each(|&partition| handle.resume_partition("orders", partition));
    until_committed(&config, "orders", &[200; 3]).await;
    assert_eq!(log.len(), 600);
    serving.stop().await.unwrap();
}
