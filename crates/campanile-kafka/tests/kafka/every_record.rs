//! Every record is processed once, in the order of its partition, and committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use campanile_core::{BoxError, Record};
use tower::service_fn;

use crate::support::{Log, committed, consumer, mock, serve, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_processed_once_in_the_order_of_its_partition_and_committed() {
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
async fn one_record_of_a_partition_is_at_work_at_a_time_and_partitions_side_by_side() {
    let kafka = mock("orders", 3, 20);
    let at_work: Arc<[AtomicUsize; 3]> = Arc::default();
    let together = Arc::new(AtomicUsize::new(0));
    let log = Log::default();
    let (seen, counts, most) = (log.clone(), at_work.clone(), together.clone());
    let service = service_fn(move |record: Record| {
        let (seen, counts, most) = (seen.clone(), counts.clone(), most.clone());
        async move {
            let count = &counts[record.partition() as usize];
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "{record:?}");
            most.fetch_max(
                counts.iter().map(|c| c.load(Ordering::SeqCst)).sum(),
                Ordering::SeqCst,
            );
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
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
async fn no_more_records_are_at_work_than_allowed() {
    let kafka = mock("orders", 8, 10);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let log = Log::default();
    let (seen, at_work, peak) = (log.clone(), now.clone(), most.clone());
    let service = service_fn(move |record: Record| {
        let (seen, at_work, peak) = (seen.clone(), at_work.clone(), peak.clone());
        async move {
            peak.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            at_work.fetch_sub(1, Ordering::SeqCst);
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
