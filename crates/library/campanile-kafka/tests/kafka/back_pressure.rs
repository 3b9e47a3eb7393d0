//! Memory is bounded, and a stalled partition blocks no other.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{Output, Outputs, ProcessingOrder, Transactions};
use campanile_test::Message;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::{Barrier, Semaphore};
use tower::service_fn;

use crate::support::{Log, consumer, gated, mock, serve, start, until, until_committed};

/// How long a stalled consumer is observed. A longer time only makes the test stricter.
const OBSERVATION_TIME: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handler_never_exceeds_the_budget() {
    let kafka = mock("orders", 4, 2500);
    let config = kafka.consumer_config("g");
    for (records, bytes, at_most) in [(1000, 64 << 20, 1250), (1_000_000, 300_000, 2000)] {
        let (begun, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
        let service = gated(&begun, &gate);
        let consumer = consumer(config.clone(), "orders")
            .with_budget(records, bytes)
            .with_drain_timeout(Duration::from_millis(50));
        let serving = serve(consumer, service);
        let handle = serving.handle();
        begun.reaches(4).await;
        until("the budget is used", || handle.status().summary.received > at_most / 3).await;
        tokio::time::sleep(OBSERVATION_TIME).await;
        let summary = serving.stop().await.unwrap();
        // One fetch may exceed the remaining budget by a record.
        assert!(summary.received <= at_most + 4, "{summary:?}");
    }
    let log = Log::default();
    let seen = log.clone();
    let consumer = consumer(config.clone(), "orders").with_budget(1000, 64 << 20);
    let serving = serve(
        consumer,
        service_fn(move |record: Record| {
            seen.push(&record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    until_committed(&config, "orders", &[2500; 4]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.len(), 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_resumes_after_a_stall() {
    let kafka = mock("orders", 4, 2000);
    let config = kafka.consumer_config("g");
    let (begun, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let service = gated(&begun, &gate);
    let consumer = consumer(config.clone(), "orders").with_budget(200, 64 << 20);
    let serving = serve(consumer, service);
    begun.reaches(4).await;
    tokio::time::sleep(OBSERVATION_TIME / 2).await;
    gate.add_permits(8000);
    until_committed(&config, "orders", &[2000; 4]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((begun.len(), summary.processed), (8000, 8000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_after_a_reset_skips_no_record() {
    const RECORDS: usize = 2000;
    let kafka = mock("orders", 1, RECORDS);
    let config = kafka.consumer_config("g");
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(RECORDS)));
    let service = gated(&log, &gate);
    let serving = serve(consumer(config.clone(), "orders").with_budget(200, 64 << 20), service);
    until_committed(&config, "orders", &[RECORDS as i64]).await;
    // The partition is read from its start again, and paused once the budget has been full for long.
    let out_of_range = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE];
    kafka.cluster().request_errors(RDKafkaApiKey::Fetch, &out_of_range);
    log.reaches(RECORDS + 1).await;
    tokio::time::sleep(3 * OBSERVATION_TIME).await;
    gate.add_permits(RECORDS);
    log.reaches(2 * RECORDS).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0)[RECORDS..], (0..RECORDS as i64).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_waiting_record_does_not_block_other_partitions() {
    let kafka = mock("orders", 4, 5000);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        let stuck = record.partition() == 0 && record.offset() == 10;
        if !stuck {
            seen.push(&record);
        }
        async move {
            match stuck {
                true => Err(BoxError::from(error::retry_after("later", Duration::from_secs(3600)))),
                false => Ok(()),
            }
        }
    });
    // Partition 0 alone could fill the budget.
    let consumer = consumer(config.clone(), "orders").with_budget(500, 64 << 20);
    let serving = serve(consumer, service);
    until_committed(&config, "orders", &[10, 5000, 5000, 5000]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.processed, 15_010);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_outputs_never_exceed_the_budget() {
    const OUTPUT: usize = 20_000;
    const BUDGET: usize = 50;
    const AT_ONCE: usize = 8;
    const PARTITIONS: usize = 2;
    let kafka = mock("orders", PARTITIONS as i32, 500);
    kafka.create_topic("invoices", 1).unwrap();
    let (begun, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    // Passed only by two records that are in flight together.
    let pair = Arc::new(Barrier::new(2));
    let (seen, first) = (begun.clone(), gate.clone());
    let service = service_fn(move |record: Record| {
        seen.push(&record);
        let (first, pair) = (first.clone(), pair.clone());
        async move {
            match record.offset() {
                0 => first.acquire().await?.forget(),
                500.. => {
                    pair.wait().await;
                }
                _ => {}
            }
            let output = Output::to("invoices").payload(vec![b'x'; OUTPUT]);
            Ok::<_, BoxError>(Outputs::of(&record).with(output))
        }
    });
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_order(ProcessingOrder::unordered())
        .with_max_in_flight(AT_ONCE)
        .with_budget(100_000, BUDGET * OUTPUT);
    let serving = start(consumer.serve_transactional(service, Transactions::new("orders-0")));
    begun.reaches(BUDGET).await;
    tokio::time::sleep(OBSERVATION_TIME).await;
    let count = begun.len();
    assert!(count <= BUDGET + AT_ONCE + PARTITIONS, "{count} outputs are pending");
    gate.add_permits(PARTITIONS);
    let handle = serving.handle();
    let held = || handle.status().partitions.iter().map(|of| of.buffered).sum::<u64>();
    until("all outputs are sent", || begun.len() == 500 * PARTITIONS && held() == 0).await;
    // The one-by-one mode is over: records of a partition are processed concurrently again.
    let next = Message::to("orders").partition(0);
    kafka.producer().produce_all([next.clone(), next]).unwrap();
    begun.reaches(500 * PARTITIONS + 2).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.processed, 500 * PARTITIONS as u64 + 2);
}

/// The limit also holds if each of many partitions has records that are large compared to the
/// budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_partitions_hold_at_most_budget_plus_a_quarter() {
    const PARTITIONS: i32 = 200;
    const SIZE: usize = 100 * 1024;
    const BUDGET: usize = 1 << 20;
    let kafka = mock("orders", PARTITIONS, 0);
    for _ in 0..3 {
        let message =
            |partition| Message::to("orders").partition(partition).payload(vec![b'x'; SIZE]);
        kafka.producer().produce_all((0..PARTITIONS).map(message)).unwrap();
    }
    let service = service_fn(|_: Record| std::future::pending::<Result<(), BoxError>>());
    let consumer = consumer(kafka.consumer_config("g"), "orders")
        .with_budget(20_000, BUDGET)
        .with_drain_timeout(Duration::ZERO);
    let serving = serve(consumer, service);
    let handle = serving.handle();
    let held = || handle.status().partitions.iter().map(|of| of.buffered).sum::<u64>() as usize;
    until("the budget is full", || held() * SIZE >= BUDGET).await;
    let mut most = 0;
    // Longer than a full budget takes to count as a stall.
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(held());
    }
    serving.stop().await.unwrap();
    // One record may exceed the budget, and one more the allowance beyond the budget.
    let limit = BUDGET * 5 / 4 + 2 * SIZE;
    assert!(most * SIZE <= limit, "{most} records of {SIZE} bytes are held");
}
