//! Records with a key that is already being processed in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, key};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_test::faults::FaultyStore;
use campanile_test::{Message, MockKafka};
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimitLayer;
use tower::util::Either;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::support::{consumer, serve, until, until_committed};

/// Starts a cluster that has the same key three times in each partition, followed by another key.
fn kafka(partitions: i32) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", partitions).unwrap();
    let same = (0..partitions * 3).map(|n| ("same".to_owned(), n / 3));
    let others = (0..partitions).map(|partition| (format!("other-{partition}"), partition));
    let messages = same.chain(others).map(|(id, partition)| {
        Message::to("orders").partition(partition).header("id", id).payload("")
    });
    kafka.producer().produce_all(messages).unwrap();
    kafka
}

/// Position of tower's concurrency limit in the stack.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    Outside(usize),
    Inside(usize),
}

struct Setup {
    store: FaultyStore<MemoryStore>,
    calls: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
    duplicates: Arc<AtomicUsize>,
    /// Each permit lets one handler of the key `same` finish.
    may_end: Arc<Semaphore>,
}

impl Setup {
    fn new() -> Self {
        Self {
            store: FaultyStore::new(MemoryStore::new()),
            calls: Arc::default(),
            runs: Arc::default(),
            duplicates: Arc::default(),
            may_end: Arc::new(Semaphore::new(0)),
        }
    }

    fn service(
        &self,
        limit: Limit,
    ) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<>
    {
        let keeper = LockKeeper::new(self.store.clone()).unwrap();
        // A waiter that depended on the lock's expiry would time out.
        let config = IdempotencyConfig::new("orders").with_lock_ttl(Duration::from_secs(3600));
        let layer = IdempotencyLayer::new(&keeper, config, key::header("id")).unwrap();
        let (runs, may_end) = (self.runs.clone(), self.may_end.clone());
        let handler = tower::service_fn(move |request: Request| {
            let (runs, may_end) = (runs.clone(), may_end.clone());
            async move {
                let same = request.lock().unwrap().key().as_bytes() == b"same";
                if same {
                    runs.fetch_add(1, Ordering::SeqCst);
                    may_end.acquire().await?.forget();
                }
                Ok::<_, BoxError>(())
            }
        });
        let (outside, inside) = match limit {
            Limit::None => (None, None),
            Limit::Outside(n) => (Some(n), None),
            Limit::Inside(n) => (None, Some(n)),
        };
        let (calls, duplicates) = (self.calls.clone(), self.duplicates.clone());
        let stack = ServiceBuilder::new()
            .option_layer(outside.map(ConcurrencyLimitLayer::new))
            .map_request(move |record: Record| {
                calls.fetch_add(1, Ordering::SeqCst);
                record
            })
            .map_response(move |outcome: Outcome<()>| {
                duplicates.fetch_add(usize::from(outcome.is_duplicate()), Ordering::SeqCst);
            })
            .layer(DecodeLayer::raw())
            .layer(layer);
        match inside {
            Some(n) => Either::Left(stack.layer(ConcurrencyLimitLayer::new(n)).service(handler)),
            None => Either::Right(stack.service(handler)),
        }
        .map_err(|error| error)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_key_within_and_across_partitions_never_deadlocks() {
    const PARTITIONS: usize = 4;
    for limit in [Limit::None, Limit::Outside(1), Limit::Inside(1), Limit::Inside(2)] {
        for in_flight in [1, 2, 256] {
            let kafka = kafka(PARTITIONS as i32);
            let config = kafka.consumer_config("g");
            let setup = Setup::new();
            setup.may_end.add_permits(1);
            let consumer = consumer(config.clone(), "orders").with_max_in_flight(in_flight);
            let serving = serve(consumer, setup.service(limit));
            until_committed(&config, "orders", &[4; PARTITIONS]).await;
            let summary = serving.stop().await.unwrap();
            let context = format!("{limit:?}, {in_flight} in flight: {summary:?}");
            assert_eq!(summary.processed, 4 * PARTITIONS as u64, "{context}");
            assert_eq!(setup.runs.load(Ordering::SeqCst), 1, "{context}");
            assert_eq!(setup.duplicates.load(Ordering::SeqCst), 3 * PARTITIONS - 1, "{context}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_duplicates_hold_no_permit_and_call_no_store() {
    const PARTITIONS: usize = 8;
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", PARTITIONS as i32).unwrap();
    let message = |partition| Message::to("orders").partition(partition).header("id", "same");
    kafka.producer().produce_all((0..PARTITIONS as i32).map(message)).unwrap();
    let config = kafka.consumer_config("g");
    let setup = Setup::new();
    // Of two permits, the holder has one. The other records are called nevertheless, and wait
    // elsewhere.
    let serving = serve(consumer(config.clone(), "orders"), setup.service(Limit::Outside(2)));
    let handle = serving.handle();
    until("all records were called", || setup.calls.load(Ordering::SeqCst) >= PARTITIONS).await;
    until("the duplicates wait", || handle.status().summary.inconclusive == PARTITIONS as u64 - 1)
        .await;
    setup.may_end.add_permits(1);
    until_committed(&config, "orders", &[1; PARTITIONS]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.inconclusive, PARTITIONS as u64 - 1);
    assert_eq!(setup.duplicates.load(Ordering::SeqCst), PARTITIONS - 1);
    let operations: Vec<_> = setup.store.commands().iter().map(|c| c.operation.name()).collect();
    assert_eq!(operations, ["acquire", "complete"]);
}
