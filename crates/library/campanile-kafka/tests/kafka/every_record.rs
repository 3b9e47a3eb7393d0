//! Every record is processed once, in the order of its partition, and committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{BoxError, Record};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::Barrier;
use tower::limit::ConcurrencyLimit;
use tower::{Service, service_fn};

use crate::support::{Log, committed, consumer, fill, mock, serve, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_processed_once_in_order_and_committed() {
    let kafka = mock("orders", 4, 500);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let seen = log.clone();
    let serving = serve(
        consumer(config.clone(), "orders"),
        service_fn(move |record: Record| {
            seen.push(&record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    log.reaches(2000).await;
    until_committed(&config, "orders", &[500; 4]).await;
    let summary = serving.stop().await.unwrap();
    for partition in 0..4 {
        assert_eq!(log.of(partition), (0..500).collect::<Vec<_>>());
    }
    assert_eq!((summary.received, summary.processed), (2000, 2000));
    assert_eq!(committed(&config, "orders", 4), [Some(500); 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_per_partition_is_in_flight() {
    let kafka = mock("orders", 3, 20);
    let in_flight: Arc<[AtomicUsize; 3]> = Arc::default();
    let together = Arc::new(AtomicUsize::new(0));
    let log = Log::default();
    let (seen, counts, most) = (log.clone(), in_flight.clone(), together.clone());
    // The first records of the partitions wait for each other.
    let first = Arc::new(Barrier::new(3));
    let service = service_fn(move |record: Record| {
        let (seen, counts, most) = (seen.clone(), counts.clone(), most.clone());
        let first = first.clone();
        async move {
            let count = &counts[record.partition() as usize];
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "{record:?}");
            most.fetch_max(counts.iter().map(|c| c.load(Ordering::SeqCst)).sum(), Ordering::SeqCst);
            if record.offset() == 0 {
                first.wait().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            count.fetch_sub(1, Ordering::SeqCst);
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), service);
    log.reaches(60).await;
    serving.stop().await.unwrap();
    assert_eq!(log.len(), 60);
    assert_eq!(together.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_flight_limit_is_not_exceeded() {
    let kafka = mock("orders", 8, 10);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let log = Log::default();
    let (seen, in_flight, peak) = (log.clone(), now.clone(), most.clone());
    // The first records wait for each other, so that the limit is reached.
    let (calls, first) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(3)));
    let service = service_fn(move |record: Record| {
        let (seen, in_flight, peak) = (seen.clone(), in_flight.clone(), peak.clone());
        let (is_first, first) = (calls.fetch_add(1, Ordering::SeqCst) < 3, first.clone());
        async move {
            peak.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            if is_first {
                first.wait().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            in_flight.fetch_sub(1, Ordering::SeqCst);
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let consumer = consumer(kafka.consumer_config("g"), "orders").with_max_in_flight(3);
    let serving = serve(consumer, service);
    log.reaches(80).await;
    serving.stop().await.unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_arriving_during_another_waits_for_its_turn() {
    let kafka = mock("orders", 1, 1);
    let config = kafka.consumer_config("g");
    let (in_flight, log) = (Arc::new(AtomicUsize::new(0)), Log::default());
    let (now, seen) = (in_flight.clone(), log.clone());
    let service = service_fn(move |record: Record| {
        let (now, seen) = (now.clone(), seen.clone());
        async move {
            let together = now.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            seen.push(&record);
            // A second record in flight would show up as a retried record.
            if together == 1 { Ok(()) } else { Err(BoxError::from("not alone")) }
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    for _ in 0..20 {
        fill(&kafka, "orders", 1, 1);
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    until_committed(&config, "orders", &[21]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), (0..21).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_commit_is_retried_without_another_record() {
    let kafka = mock("orders", 1, 0);
    let config = kafka.consumer_config("g");
    let log = Log::default();
    let seen = log.clone();
    let serving = serve(
        consumer(config.clone(), "orders"),
        service_fn(move |record: Record| {
            seen.push(&record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    for (count, failure) in [
        (1, RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS),
        (2, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED),
        (3, RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT),
    ] {
        kafka.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &[failure; 2]);
        fill(&kafka, "orders", 1, 1);
        until_committed(&config, "orders", &[count]).await;
    }
    serving.stop().await.unwrap();
    assert_eq!(log.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_is_polled_ready_only_for_a_record() {
    let kafka = mock("orders", 3, 0);
    let config = kafka.consumer_config("g");
    let polls = Arc::new(AtomicUsize::new(0));
    let log = Log::default();
    let (seen, polled) = (log.clone(), polls.clone());
    let inner = service_fn(move |record: Record| {
        seen.push(&record);
        async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok::<_, BoxError>(())
        }
    });
    // The limit, which the clones share, makes all records but one wait.
    let service = PollsCounted { inner: ConcurrencyLimit::new(inner, 1), polled };
    let serving = serve(consumer(config.clone(), "orders"), service);
    // The consumer is a member once it has assigned partitions. Before the first record, nothing
    // polls the service.
    fill(&kafka, "orders", 1, 1);
    until_committed(&config, "orders", &[1]).await;
    let before = polls.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(polls.load(Ordering::SeqCst), before, "polled without a record");
    fill(&kafka, "orders", 3, 20);
    until_committed(&config, "orders", &[21, 20, 20]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.len(), 61);
}

#[derive(Clone)]
struct PollsCounted<S> {
    inner: S,
    polled: Arc<AtomicUsize>,
}

impl<S: Service<Record>> Service<Record> for PollsCounted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.polled.fetch_add(1, Ordering::SeqCst);
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, record: Record) -> S::Future {
        self.inner.call(record)
    }
}
