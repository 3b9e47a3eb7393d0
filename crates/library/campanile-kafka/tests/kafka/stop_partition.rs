//! Partitions that are stopped at a record that is given up.

use std::sync::Arc;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{
    Consumer, Handle, OnGiveUp, Output, Outputs, ProcessingOrder, StoppedPartition, Transactions,
};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use tokio::sync::Semaphore;
use tower::{Service, service_fn};

use crate::give_up::{FAILS, GOOD, LAST, Outcomes, keeper, service};
use crate::support::{Log, committed, consumer, fill, mock, serve, start, until, until_committed};

fn stopping(config: &ClientConfig) -> Consumer {
    consumer(config.clone(), "orders").on_give_up(OnGiveUp::StopPartition)
}

fn stopped(handle: &Handle, partition: usize) -> Option<StoppedPartition> {
    handle.status().partitions.get(partition).and_then(|status| status.stopped)
}

async fn until_stopped(handle: &Handle, partition: usize, offset: i64) {
    let at = || stopped(handle, partition).map(|stopped| stopped.offset);
    until("the partition is stopped", || at() == Some(offset)).await;
}

/// A service that refuses one record.
fn refusing(
    log: &Log,
    refused: (i32, i64),
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let log = log.clone();
    service_fn(move |record: Record| {
        log.push(&record);
        let is_refused = (record.partition(), record.offset()) == refused;
        async move { if is_refused { Err(error::permanent("no").into()) } else { Ok(()) } }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_holds_up_no_other_partition() {
    let kafka = mock("orders", 2, 3);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serving = serve(stopping(&config), refusing(&log, (0, 1)));
    let handle = serving.handle();
    until_stopped(&handle, 0, 1).await;
    fill(&kafka, "orders", 2, 5);
    until_committed(&config, "orders", &[1, 8]).await;
    assert_eq!(log.of(0), [0, 1]);
    assert_eq!(stopped(&handle, 1), None);
    let health = handle.health();
    assert_eq!((health.live, health.ready), (Ok(()), Ok(())));
    until("waiting records are dropped", || handle.status().partitions[0].buffered == 0).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.processed, 9);
    // Every record is accounted for; the refused one is among the dropped ones.
    assert_eq!(summary.received, summary.processed + summary.revoked + summary.unfinished);

    // The next owner meets the record again.
    let again = serve(stopping(&config), refusing(&log, (0, 1)));
    until_stopped(&again.handle(), 0, 1).await;
    again.stop().await.unwrap();
    let fixed = serve(stopping(&config), refusing(&log, (0, -1)));
    until_committed(&config, "orders", &[8, 8]).await;
    fixed.stop().await.unwrap();
    assert_eq!(log.of(0), [0, 1, 1, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_finishes_records_in_flight_only() {
    let kafka = mock("orders", 1, 10);
    let config = kafka.consumer_config("g");
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (begun, permits) = (log.clone(), gate.clone());
    let service = service_fn(move |record: Record| {
        begun.push(&record);
        let permits = permits.clone();
        let begun = begun.clone();
        async move {
            if record.offset() == 1 {
                begun.reaches(3).await;
                return Err(BoxError::from(error::permanent("no")));
            }
            permits.acquire().await?.forget();
            Ok(())
        }
    });
    let consumer = stopping(&config).with_order(ProcessingOrder::unordered()).with_max_in_flight(3);
    let serving = serve(consumer, service);
    let handle = serving.handle();
    until_stopped(&handle, 0, 1).await;
    gate.add_permits(100);
    until("no record is left", || handle.status().partitions[0].buffered == 0).await;
    assert_eq!(log.len(), 3, "no further record is started");
    assert_eq!(serving.stop().await.unwrap().processed, 2);
    // Nothing is committed behind the record, although records there are finished.
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_leaves_the_in_flight_limit_to_others() {
    let kafka = mock("orders", 2, 5);
    let config = kafka.consumer_config("g");
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (begun, permits) = (log.clone(), gate.clone());
    let service = service_fn(move |record: Record| {
        begun.push(&record);
        let (begun, permits) = (begun.clone(), permits.clone());
        async move {
            if (record.partition(), record.offset()) == (0, 0) {
                // Each partition has its share of the limit.
                begun.reaches(4).await;
                return Err(BoxError::from(error::permanent("no")));
            }
            permits.acquire().await?.forget();
            Ok(())
        }
    });
    let consumer = stopping(&config).with_order(ProcessingOrder::unordered()).with_max_in_flight(4);
    let serving = serve(consumer, service);
    until_stopped(&serving.handle(), 0, 0).await;
    until("the other partition has the freed place", || log.of(1).len() == 3).await;
    gate.add_permits(100);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_is_reported_at_the_lowest_offset() {
    let kafka = mock("orders", 1, 2);
    let config = kafka.consumer_config("g");
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let opened = gate.clone();
    let service = service_fn(move |record: Record| {
        log.push(&record);
        let (begun, gate) = (log.clone(), gate.clone());
        async move {
            if record.offset() == 0 {
                gate.acquire().await?.forget();
            }
            // In a stopped partition, no further record is started.
            begun.reaches(2).await;
            Err::<(), _>(BoxError::from(error::permanent("no")))
        }
    });
    let serving = serve(stopping(&config).with_order(ProcessingOrder::unordered()), service);
    let handle = serving.handle();
    until_stopped(&handle, 0, 1).await;
    opened.add_permits(1);
    until_stopped(&handle, 0, 0).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_releases_the_lock_for_its_next_owner() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let message = |payload: &str| Message::to("orders").partition(0).payload(payload);
    kafka.producer().produce_all([GOOD, FAILS, LAST].map(message)).unwrap();
    let config = kafka.consumer_config("g");
    let (keeper, outcomes) = (keeper(), Outcomes::default());
    // The second time, no attempt is left.
    for _ in 0..2 {
        let serving = serve(stopping(&config), service(&keeper, 2, &outcomes));
        until_stopped(&serving.handle(), 0, 1).await;
        assert_eq!(serving.stop().await.unwrap().skipped, 0);
        assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    }
    let skipping = consumer(config.clone(), "orders").on_give_up(OnGiveUp::Skip);
    let serving = serve(skipping, service(&keeper, 2, &outcomes));
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.skipped, summary.inconclusive), (1, 0), "the lock is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_is_given_to_another_consumer() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serving = serve(stopping(&config), refusing(&log, (0, 1)));
    until_stopped(&serving.handle(), 0, 1).await;
    // The mock cluster refuses commits while a member joins.
    until_committed(&config, "orders", &[1]).await;
    let next = serve(stopping(&config), refusing(&log, (0, -1)));
    serving.stop().await.unwrap();
    until_committed(&config, "orders", &[3]).await;
    assert_eq!(next.stop().await.unwrap().processed, 2);
}

/// The outputs of records behind the stopped one are dropped, or they would fill the budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_of_stopped_partition_hold_up_no_other_partition() {
    const RECORDS: usize = 50;
    let kafka = mock("orders", 2, 0);
    kafka.create_topic("bills", 1).unwrap();
    let config = kafka.consumer_config("g");
    fill(&kafka, "orders", 1, RECORDS);
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let service = service_fn(move |record: Record| {
        let gate = gate.clone();
        async move {
            if (record.partition(), record.offset()) == (0, 0) {
                let _open = gate.acquire().await;
                return Err(BoxError::from(error::permanent("no")));
            }
            Ok(Outputs::of(&record).with(Output::to("bills").payload(vec![0; 50_000])))
        }
    });
    let serving = start(
        stopping(&config)
            .with_order(ProcessingOrder::unordered())
            .with_budget(20_000, 1 << 20)
            .serve_transactional(service, Transactions::new("t")),
    );
    let handle = serving.handle();
    // The outputs that are held back fill the budget.
    let buffered = || handle.status().partitions.first().map_or(0, |status| status.buffered);
    until("outputs are held", || buffered() >= 20).await;
    opened.add_permits(1);
    until_stopped(&handle, 0, 0).await;
    until("held outputs are dropped", || buffered() == 0).await;
    fill(&kafka, "orders", 2, RECORDS);
    let watermark = || handle.status().partitions[1].watermark;
    until("the other partition is processed", || watermark() == Some(RECORDS as i64)).await;
    serving.stop().await.unwrap();
}
