//! Batch handlers: each record of a batch is retried, finished and committed individually.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{BoxError, DecodeLayer, Request, key};
use campanile_idempotency::{
    Backoff, BatchLayer, IdempotencyConfig, IdempotencyLayer, MemoryStore,
};
use tower::ServiceBuilder;

use crate::support::{consumer, fill, mock, serve, until_committed};

type Batch = Vec<Request<Option<Bytes>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_records_are_retried_and_committed_individually() {
    const PARTITIONS: i32 = 8;
    let kafka = mock("orders", PARTITIONS, 40);
    let config = kafka.consumer_config("g");
    // The number of batches that contained each record, and the size of the largest batch.
    let seen = Arc::new(Mutex::new((HashMap::<String, u32>::new(), 0)));
    let all = seen.clone();
    let handler = move |batch: Batch| {
        let all = all.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut all = all.lock().unwrap();
            all.1 = all.1.max(batch.len());
            let mut result = |request: &Request<_>| {
                let record = request.record();
                let times = all.0.entry(record.coordinates().to_string()).or_default();
                *times += 1;
                // Some records fail at first, in the middle of others.
                match (record.offset() + i64::from(record.partition())) % 10 == 0 && *times == 1 {
                    true => Err(BoxError::from("busy")),
                    false => Ok(()),
                }
            };
            Ok::<_, BoxError>(batch.iter().map(&mut result).collect())
        }
    };
    let short = Backoff::new(Duration::from_millis(1), Duration::from_millis(10)).unwrap();
    let idempotency = IdempotencyConfig::new("orders").with_backoff(short);
    let layer = IdempotencyLayer::new(MemoryStore::new(), idempotency, key::coordinates()).unwrap();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(layer)
        .layer(BatchLayer::new(100, Duration::from_millis(5)).unwrap())
        .service_fn(handler);
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[40; 8]).await;
    // A record that arrives alone is processed, too.
    fill(&kafka, "orders", 1, 1);
    until_committed(&config, "orders", &[41, 40, 40, 40, 40, 40, 40, 40]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.retried), (321, 33));
    let (times, largest) = &*seen.lock().unwrap();
    assert_eq!(times.len(), 321);
    assert_eq!(times.values().filter(|&&times| times == 2).count(), 33);
    assert!(times.values().all(|&times| times <= 2), "its neighbours' failures are not its own");
    assert!(*largest > 1 && *largest <= PARTITIONS as usize, "batches of up to {largest}");
}
