//! Seeks of partitions through a handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, error, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_kafka::{
    Consumer, Handle, OnGiveUp, Outputs, ProcessingOrder, Rebalance, SeekError, SeekTo,
    TopicPartition, Transactions,
};
use campanile_test::KafkaServer;
use futures_util::FutureExt;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::Semaphore;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::real::{blocking, logging, topic};
use crate::support::{
    Log, TIMEOUT, committed, consumer, fill, gated, messages, mock, serve, start, until,
    until_committed, until_held, within,
};

/// Creates a consumer that has one record of each of two partitions in flight. The others wait in the
/// driver, which drops them when it begins to drain.
fn one_at_a_time(config: &ClientConfig, topic: &str) -> Consumer {
    consumer(config.clone(), topic).with_order(ProcessingOrder::unordered()).with_max_in_flight(2)
}

fn sorted(mut offsets: Vec<i64>) -> Vec<i64> {
    offsets.sort_unstable();
    offsets
}

async fn seek(handle: &Handle, partition: i32, to: SeekTo) -> Result<i64, SeekError> {
    within("the seek has ended", handle.seek("orders", partition, to)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backward_seek_delivers_again_and_layer_answers_duplicates() {
    for order in [ProcessingOrder::by_partition(), ProcessingOrder::unordered()] {
        let kafka = mock("orders", 2, 10);
        let config = kafka.consumer_config("g");
        let (runs, duplicates) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
        let layer = IdempotencyConfig::new("orders");
        let layer = IdempotencyLayer::new(&keeper, layer, key::coordinates()).unwrap();
        let (ran, duplicate) = (runs.clone(), duplicates.clone());
        let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
            move |_: Request| {
                ran.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, BoxError>(()) }
            },
        );
        let service = service.map_response(move |outcome: Outcome<()>| {
            if outcome.is_duplicate() {
                duplicate.fetch_add(1, Ordering::SeqCst);
            }
        });
        let serving = serve(consumer(config.clone(), "orders").with_order(order), service);
        let handle = serving.handle();
        until_committed(&config, "orders", &[10, 10]).await;
        let mut rebalances = handle.rebalances();
        assert!(matches!(rebalances.next().await, Some(Rebalance::Assigned(_))));

        assert_eq!(seek(&handle, 1, SeekTo::Offset(4)).await.unwrap(), 4);
        until("the records are delivered again", || duplicates.load(Ordering::SeqCst) == 6).await;
        fill(&kafka, "orders", 2, 1);
        until_committed(&config, "orders", &[11, 11]).await;
        assert_eq!(seek(&handle, 0, SeekTo::Beginning).await.unwrap(), 0);
        until("all records are delivered again", || duplicates.load(Ordering::SeqCst) == 17).await;
        assert_eq!(runs.load(Ordering::SeqCst), 22);
        assert_eq!(handle.status().partitions.len(), 2);
        assert_eq!(rebalances.next().now_or_never(), None, "a seek is no rebalance");
        let summary = serving.stop().await.unwrap();
        assert_eq!(summary.processed, 22 + 17);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backward_seek_commits_only_what_is_finished_from_there() {
    let kafka = mock("orders", 1, 10);
    let config = kafka.consumer_config("g");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(10)));
    let mut serving = serve(consumer(config.clone(), "orders"), gated(&begun, &permits));
    until_committed(&config, "orders", &[10]).await;
    let handle = serving.handle();
    assert_eq!(seek(&handle, 0, SeekTo::Offset(5)).await.unwrap(), 5);
    begun.reaches(11).await;
    assert_eq!(committed(&config, "orders", 1), [Some(10)]);
    permits.add_permits(2);
    until_committed(&config, "orders", &[7]).await;
    permits.add_permits(10);
    until_committed(&config, "orders", &[10]).await;
    serving.begin_shutdown().await;
    assert!(matches!(seek(&handle, 0, SeekTo::Beginning).await, Err(SeekError::ShuttingDown)));
    serving.ended().await.unwrap();
    assert!(matches!(seek(&handle, 0, SeekTo::Beginning).await, Err(SeekError::ShuttingDown)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_seek_skips_and_commits_the_position() {
    // The handler takes one record, which is in flight during the seek and then dropped.
    let kafka = mock("orders", 2, 20);
    let config = kafka.consumer_config("g");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let serving = serve(short, gated(&begun, &permits));
    let handle = serving.handle();
    begun.reaches(2).await;
    assert_eq!(seek(&handle, 0, SeekTo::Offset(15)).await.unwrap(), 15);
    assert_eq!(seek(&handle, 1, SeekTo::End).await.unwrap(), 20);
    // The positions were committed, although no record is finished.
    assert_eq!(committed(&config, "orders", 2), [Some(15), Some(20)]);
    permits.add_permits(100);
    fill(&kafka, "orders", 2, 2);
    until_committed(&config, "orders", &[22, 22]).await;
    assert_eq!(begun.of(0), [0, 15, 16, 17, 18, 19, 20, 21]);
    assert_eq!(begun.of(1), [0, 20, 21]);
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.unfinished), (7 + 2, 0));
    assert_eq!(summary.received, summary.processed + summary.revoked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seek_waits_for_the_record_in_flight() {
    let kafka = mock("orders", 2, 10);
    let config = kafka.consumer_config("g");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let long = one_at_a_time(&config, "orders").with_drain_timeout(TIMEOUT);
    let serving = serve(long, gated(&begun, &permits));
    let handle = serving.handle();
    begun.reaches(2).await;
    until_held(&handle, 10).await;
    let to_seek = handle.clone();
    let seeking = tokio::spawn(async move { seek(&to_seek, 0, SeekTo::Offset(8)).await });
    until("waiting records are dropped", || {
        handle.status().partitions.iter().any(|p| p.partition == 0 && p.buffered <= 1)
    })
    .await;
    assert!(matches!(seek(&handle, 0, SeekTo::Beginning).await, Err(SeekError::InProgress)));
    assert!(!seeking.is_finished());
    // One of the two handlers in flight ends, and then the other one.
    permits.add_permits(2);
    assert_eq!(seeking.await.unwrap().unwrap(), 8);
    permits.add_permits(100);
    until_committed(&config, "orders", &[10, 10]).await;
    assert_eq!(sorted(begun.of(0)), [0, 8, 9]);
    assert_eq!(begun.of(1).len(), 10);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_of_a_partition_survives_its_seek() {
    let kafka = mock("orders", 1, 10);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "orders"), logging(&log));
    let handle = serving.handle();
    until_committed(&config, "orders", &[10]).await;
    handle.pause_partition("orders", 0);
    seek(&handle, 0, SeekTo::Offset(7)).await.unwrap();
    until("the records are received", || handle.status().partitions[0].buffered == 3).await;
    assert!(handle.status().partitions[0].paused);
    assert_eq!(log.len(), 10);
    handle.resume_partition("orders", 0);
    log.reaches(13).await;
    assert_eq!(log.of(0)[10..], [7, 8, 9]);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_partition_continues_after_a_seek() {
    let kafka = mock("orders", 1, 5);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let called = log.clone();
    let refuses = service_fn(move |record: Record| {
        called.push(&record);
        let refused = record.offset() == 2;
        async move { if refused { Err(BoxError::from(error::permanent("no"))) } else { Ok(()) } }
    });
    let stopping = consumer(config.clone(), "orders").on_give_up(OnGiveUp::StopPartition);
    let serving = serve(stopping, refuses);
    let handle = serving.handle();
    let stopped = || handle.status().partitions.first().is_some_and(|p| p.stopped.is_some());
    until("the partition is stopped", stopped).await;
    seek(&handle, 0, SeekTo::Offset(3)).await.unwrap();
    until_committed(&config, "orders", &[5]).await;
    assert!(!stopped());
    assert_eq!(log.of(0), [0, 1, 2, 3, 4]);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_seek_is_an_error_without_an_effect() {
    let kafka = mock("orders", 1, 10);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let serve = consumer(config.clone(), "orders").serve(logging(&log));
    let handle = serve.handle();
    let not_assigned = |result| matches!(result, Err(SeekError::NotAssigned));
    assert!(not_assigned(seek(&handle, 0, SeekTo::Beginning).await), "serving has not started");
    let serving = start(serve);
    until_committed(&config, "orders", &[10]).await;
    assert!(not_assigned(seek(&handle, 1, SeekTo::Beginning).await));
    assert!(not_assigned(handle.seek("other", 0, SeekTo::Beginning).await));
    for offset in [-1, 11] {
        let error = seek(&handle, 0, SeekTo::Offset(offset)).await.unwrap_err();
        assert!(matches!(error, SeekError::OutOfRange { first: 0, end: 10, .. }), "{error:?}");
    }
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    kafka.cluster().request_errors(RDKafkaApiKey::ListOffsets, &[refused]);
    let error = seek(&handle, 0, SeekTo::Beginning).await.unwrap_err();
    assert!(matches!(error, SeekError::Kafka(_)), "{error:?}");
    fill(&kafka, "orders", 1, 1);
    until_committed(&config, "orders", &[11]).await;
    assert_eq!(log.of(0), (0..11).collect::<Vec<_>>());
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seek_in_transactions_is_an_error() {
    let kafka = mock("orders", 1, 1);
    let log = Log::default();
    let called = log.clone();
    let service = service_fn(move |record: Record| {
        called.push(&record);
        async move { Ok::<_, BoxError>(Outputs::of(&record)) }
    });
    let consumer = consumer(kafka.consumer_config("g"), "orders");
    let serving = start(consumer.serve_transactional(service, Transactions::new("t")));
    log.reaches(1).await;
    let error = seek(&serving.handle(), 0, SeekTo::Beginning).await.unwrap_err();
    assert!(matches!(error, SeekError::Transactional), "{error:?}");
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoke_during_a_seek_ends_the_seek() {
    const TOPIC: &str = "seek-revoke";
    // The mock cluster may refuse a commit in the revoke.
    let kafka = topic(TOPIC, 2, &[]).await;
    blocking(|| kafka.producer().produce_all(messages(TOPIC, 2, 10)).unwrap()).await;
    let mut config = kafka.consumer_config(TOPIC);
    config.set("session.timeout.ms", "10000");
    let (begun, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let long = one_at_a_time(&config, TOPIC).with_drain_timeout(TIMEOUT);
    let serving = serve(long, gated(&begun, &permits));
    let handle = serving.handle();
    let mut rebalances = handle.rebalances();
    begun.reaches(2).await;
    assert!(matches!(rebalances.next().await, Some(Rebalance::Assigned(_))));
    until_held(&handle, 10).await;
    let seeks = [0, 1].map(|partition| {
        let handle = handle.clone();
        let seek = async move { handle.seek(TOPIC, partition, SeekTo::Offset(8)).await };
        tokio::spawn(within("the seek has ended", seek))
    });
    until("waiting records are dropped", || {
        handle.status().partitions.iter().all(|p| p.buffered <= 1)
    })
    .await;

    let second = Log::default();
    let other = serve(consumer(config.clone(), TOPIC), logging(&second));
    until("a partition is revoked", || handle.status().partitions.len() == 1).await;
    let kept = handle.status().partitions[0].partition;
    let revoked = 1 - kept;
    assert_eq!(rebalances.next().now_or_never(), None, "a record is in flight");
    permits.add_permits(100);
    let topic = TOPIC.into();
    let expected = Rebalance::Revoked(vec![TopicPartition { topic, partition: revoked }]);
    assert_eq!(within("the revoke is reported", rebalances.next()).await, Some(expected));
    for (partition, seek) in (0..).zip(seeks) {
        match seek.await.unwrap() {
            Ok(offset) => assert_eq!((partition, offset), (kept, 8)),
            Err(error) => {
                assert!(matches!(error, SeekError::NotAssigned), "{error:?}");
                assert_eq!(partition, revoked);
            }
        }
    }
    until_committed(&config, TOPIC, &[10, 10]).await;
    // The next owner continues after the record that was in flight.
    assert_eq!(sorted(begun.of(kept)), [0, 8, 9]);
    assert_eq!((begun.of(revoked), second.of(revoked)), (vec![0], (1..10).collect()));
    other.stop().await.unwrap();
    serving.stop().await.unwrap();
}

/// Produces a record for each of these times, in milliseconds.
fn produce_at(kafka: &KafkaServer, topic: &str, times: &[i64]) {
    let mut config = ClientConfig::new();
    let producer: BaseProducer =
        config.set("bootstrap.servers", kafka.bootstrap()).create().unwrap();
    for time in times {
        let record = BaseRecord::<(), str>::to(topic).partition(0).payload("").timestamp(*time);
        producer.send(record).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seek_by_time_goes_to_the_first_record_from_then_on() {
    let kafka = topic("seek-time", 1, &[]).await;
    let config = kafka.consumer_config("seek-time");
    // Recent enough for the topic's retention.
    let start = SystemTime::UNIX_EPOCH.elapsed().unwrap() - Duration::from_secs(3600);
    let at = move |seconds| start + Duration::from_secs(seconds);
    let times: Vec<i64> = (0..10).map(|n| at(10 * n).as_millis() as i64).collect();
    blocking(move || produce_at(kafka, "seek-time", &times)).await;
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "seek-time"), logging(&log));
    let handle = serving.handle();
    log.reaches(10).await;
    let to = async |seconds| {
        let to = SeekTo::Time(SystemTime::UNIX_EPOCH + at(seconds));
        within("the seek has ended", handle.seek("seek-time", 0, to)).await.unwrap()
    };
    assert_eq!(to(65).await, 7);
    log.reaches(13).await;
    assert_eq!(log.of(0)[10..], [7, 8, 9]);
    assert_eq!(to(30).await, 3);
    log.reaches(20).await;
    assert_eq!(to(1000).await, 10);
    let first = SeekTo::Time(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
    assert_eq!(handle.seek("seek-time", 0, first).await.unwrap(), 0);
    log.reaches(30).await;
    until_committed(&config, "seek-time", &[10]).await;
    serving.stop().await.unwrap();
}
