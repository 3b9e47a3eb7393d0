//! User code that blocks its thread stalls only its own queue, as long as the runtime has another
//! thread.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use campanile_core::{
    BoxError, DecodeLayer, IdempotencyKey, Record, Request, State, StoreKey, key,
};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use campanile_kafka::{ConsumerStage, ProcessingOrder};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use tokio::runtime;
use tokio::sync::Semaphore;
use tower::{ServiceBuilder, service_fn};

use crate::real::{blocking, logging};
use crate::support::{Log, committed, consumer, fill, mock, serve, until, until_committed, within};

/// Blocks threads until it is released or dropped, so that a failing test does not wait for its own
/// handlers.
struct Block(BlockPoint);

/// The part of a [`Block`] that a handler blocks on.
#[derive(Clone, Default)]
struct BlockPoint {
    free: Arc<(Mutex<bool>, Condvar)>,
    count: Arc<AtomicUsize>,
}

impl Block {
    fn new() -> (Self, BlockPoint) {
        let block_point = BlockPoint::default();
        (Self(block_point.clone()), block_point)
    }

    fn release(&self) {
        let (free, changed) = &*self.0.free;
        *free.lock().unwrap() = true;
        changed.notify_all();
    }

    /// Waits until this many threads are blocked.
    async fn until(&self, count: usize) {
        until("threads are blocked", || self.0.count.load(Ordering::SeqCst) >= count).await;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.release();
    }
}

impl BlockPoint {
    /// Blocks the thread, as user code should not.
    fn wait(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let (free, changed) = &*self.free;
        drop(changed.wait_while(free.lock().unwrap(), |free| !*free).unwrap());
    }
}

fn produce(kafka: &MockKafka, partition: i32, count: usize) {
    let messages =
        (0..count).map(|n| Message::to("orders").partition(partition).payload(n.to_string()));
    kafka.producer().produce_all(messages).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn two_blocked_handlers_do_not_block_other_partitions() {
    let kafka = mock("orders", 3, 0);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        let (seen, block_point) = (seen.clone(), block_point.clone());
        async move {
            if record.partition() < 2 {
                block_point.wait();
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    (0..2).for_each(|partition| produce(&kafka, partition, 3));
    block.until(2).await;
    produce(&kafka, 2, 1000);
    until("the other partition is processed", || log.of(2).len() == 1000).await;
    assert_eq!(log.len(), 1000);
    block.release();
    until_committed(&config, "orders", &[3, 3, 1000]).await;
    serving.stop().await.unwrap();
}

/// An async mutex, a semaphore or a channel wakes tasks in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_woken_by_a_blocking_handler_still_runs() {
    let kafka = mock("orders", 3, 0);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::new(AtomicBool::new(false));
    let (seen, waiting) = (log.clone(), waits.clone());
    let service = service_fn(move |record: Record| {
        let (seen, block_point) = (seen.clone(), block_point.clone());
        let (gate, waiting) = (gate.clone(), waiting.clone());
        async move {
            match record.partition() {
                0 => {
                    gate.add_permits(1);
                    block_point.wait();
                }
                1 => {
                    waiting.store(true, Ordering::SeqCst);
                    gate.acquire().await?.forget();
                }
                _ => {}
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    produce(&kafka, 1, 1);
    until("the handler waits", || waits.load(Ordering::SeqCst)).await;
    produce(&kafka, 0, 1);
    block.until(1).await;
    produce(&kafka, 2, 100);
    until("the others are processed", || log.of(1).len() == 1 && log.of(2).len() == 100).await;
    assert!(log.of(0).is_empty());
    block.release();
    until_committed(&config, "orders", &[1, 1, 100]).await;
    serving.stop().await.unwrap();
}

/// Otherwise, the record's lock would be renewed although nothing processes the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_started_with_a_blocking_record_is_processed() {
    const PARTITIONS: i32 = 6;
    let kafka = mock("orders", PARTITIONS, 0);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let store = MemoryStore::new();
    let key = key::from_fn(|request: &Request| request.record().coordinates().to_string());
    let layer = IdempotencyLayer::new(store.clone(), "orders", key).unwrap();
    let seen = log.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            let (seen, block_point) = (seen.clone(), block_point.clone());
            async move {
                if request.record().partition() == PARTITIONS - 1 {
                    block_point.wait();
                }
                seen.push(request.record());
                Ok::<_, BoxError>(())
            }
        },
    );
    let serving = serve(consumer(config.clone(), "orders"), service);
    let handle = serving.handle();
    until("the partitions are assigned", || {
        handle.status().partitions.len() == PARTITIONS as usize
    })
    .await;
    // All records are fetched before the first one is started.
    handle.pause();
    fill(&kafka, "orders", PARTITIONS, 1);
    let held = || handle.status().partitions.iter().map(|p| p.buffered).sum::<u64>();
    until("all records are held", || held() == PARTITIONS as u64).await;
    handle.resume();
    block.until(1).await;
    until("the others are processed", || log.len() == PARTITIONS as usize - 1).await;
    let completed = |partition: i32| {
        let key = IdempotencyKey::new(format!("orders/{partition}@0")).unwrap();
        let entry = store.entry(&StoreKey::new("orders".try_into().unwrap(), &key));
        entry.is_some_and(|entry| entry.state() == State::Completed)
    };
    until("the other keys are completed", || (0..PARTITIONS - 1).all(completed)).await;
    block.release();
    until_committed(&config, "orders", &[1; PARTITIONS as usize]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_decoder_blocks_only_its_partition() {
    let kafka = mock("orders", 2, 0);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let seen = log.clone();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::with(move |record: &Record| {
            if record.partition() == 0 {
                block_point.wait();
            }
            Ok::<_, BoxError>(())
        }))
        .service_fn(move |request: Request<()>| {
            seen.push(request.record());
            async { Ok::<_, BoxError>(()) }
        });
    let serving = serve(consumer(config.clone(), "orders"), service);
    produce(&kafka, 0, 1);
    block.until(1).await;
    produce(&kafka, 1, 100);
    until("the other partition is processed", || log.of(1).len() == 100).await;
    block.release();
    until_committed(&config, "orders", &[1, 100]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_order_extractor_blocks_only_its_partition() {
    let kafka = mock("orders", 2, 0);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let order = ProcessingOrder::by(move |record: &Record| {
        if record.partition() == 0 && record.offset() == 0 {
            block_point.wait();
        }
        Some(format!("{}", record.offset() % 3))
    });
    let serving = serve(consumer(config.clone(), "orders").with_order(order), logging(&log));
    produce(&kafka, 0, 1);
    block.until(1).await;
    produce(&kafka, 0, 10);
    produce(&kafka, 1, 100);
    until("the other partition is processed", || log.of(1).len() == 100).await;
    assert!(log.of(0).is_empty(), "the keys of the other records are not known yet");
    block.release();
    until_committed(&config, "orders", &[11, 100]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_completes_with_all_threads_blocked() {
    let kafka = mock("orders", 3, 0);
    let config: ClientConfig = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        let (seen, block_point) = (seen.clone(), block_point.clone());
        async move {
            if record.partition() < 2 && record.offset() == 1 {
                block_point.wait();
                // The driver has dropped the future, so code after this point does not run.
                tokio::task::yield_now().await;
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let consumer = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let serving = serve(consumer, service);
    fill(&kafka, "orders", 3, 1);
    log.reaches(3).await;
    (0..2).for_each(|partition| produce(&kafka, partition, 1));
    let handle = serving.handle();
    while block.0.count.load(Ordering::SeqCst) < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    handle.shutdown();
    // Both threads of the runtime are blocked, and with them its timers and the task that waits for
    // serving.
    let mut rounds = 0;
    while handle.status().stage != ConsumerStage::Ended {
        thread::sleep(Duration::from_millis(10));
        rounds += 1;
        assert!(rounds < 3000, "serving has not ended");
    }
    block.release();
    let summary = within("serving ends", serving.ended()).await.unwrap();
    assert_eq!((summary.processed, summary.unfinished), (3, 2));
    let asked = config.clone();
    let offsets = blocking(move || committed(&asked, "orders", 3)).await;
    assert_eq!(offsets, [Some(1); 3]);
    assert_eq!(log.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebalance_completes_with_all_threads_blocked() {
    let kafka = mock("orders", 4, 1);
    let config = kafka.consumer_config("g");
    let (log, (block, block_point)) = (Log::default(), Block::new());
    let blocks = service_fn(move |_: Record| {
        let block_point = block_point.clone();
        async move {
            block_point.wait();
            Ok::<_, BoxError>(())
        }
    });
    // The consumer has a runtime of its own, and its handlers block both threads.
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let short = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let blocked = {
        let _context = runtime.enter();
        serve(short, blocks)
    };
    block.until(2).await;
    let other = serve(consumer(config.clone(), "orders"), logging(&log));
    log.reaches(2).await;
    assert_eq!(block.0.count.load(Ordering::SeqCst), 2, "a thread was free");
    block.release();
    until_committed(&config, "orders", &[1; 4]).await;
    other.stop().await.unwrap();
    blocked.stop().await.unwrap();
    runtime.shutdown_background();
}

/// A panic payload that panics again when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("injected panic in drop");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_payload_that_panics_on_drop_counts_as_panic() {
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let tried = Arc::new(AtomicBool::new(false));
    let service = service_fn(move |record: Record| {
        let tried = tried.clone();
        async move {
            if record.offset() == 1 && !tried.swap(true, Ordering::SeqCst) {
                std::panic::panic_any(PanicOnDrop);
            }
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.retried), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_keep_order_despite_waits_panics_and_failures() {
    const RECORDS: i64 = 2000;
    let kafka = mock("orders", 2, RECORDS as usize);
    let config = kafka.consumer_config("g");
    let (log, tries) = (Log::default(), Arc::new(Mutex::new(HashSet::new())));
    let seen = log.clone();
    let service = service_fn(move |record: Record| {
        let (seen, tries) = (seen.clone(), tries.clone());
        async move {
            let first = tries.lock().unwrap().insert(record.coordinates().clone());
            match record.offset() % 1000 {
                300 => tokio::time::sleep(Duration::from_millis(1)).await,
                600 if first => panic!("injected panic"),
                900 if first => {
                    let again = Duration::from_millis(1);
                    return Err(campanile_core::error::retry_after("no", again).into());
                }
                _ => {}
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    until_committed(&config, "orders", &[RECORDS; 2]).await;
    let summary = serving.stop().await.unwrap();
    // In each thousand records of each partition, one has panicked and one has failed.
    assert_eq!((summary.processed, summary.retried), (2 * RECORDS as u64, 8));
    for partition in 0..2 {
        assert_eq!(log.of(partition), (0..RECORDS).collect::<Vec<_>>());
    }
}
