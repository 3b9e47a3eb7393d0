//! Handlers that are so quick that the driver runs them itself: what holds for all handlers holds for
//! them, too.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Handle, Order, Stage};
use campanile_test::MockKafka;
use rdkafka::ClientConfig;
use tokio::task;
use tower::service_fn;

use crate::support::{
    Log, Serving, committed, consumer, fill, mock, serve, until, until_committed,
};

/// So many records of each partition make the driver run their handlers itself.
const WARM: usize = 2000;

/// A thread that is blocked until it is let go.
#[derive(Clone, Default)]
struct Block(Arc<(Mutex<bool>, Condvar)>);

impl Block {
    /// What a handler should not do.
    fn wait(&self) {
        let (free, changed) = &*self.0;
        drop(changed.wait_while(free.lock().unwrap(), |free| !*free).unwrap());
    }

    fn let_go(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Which tasks handlers ran in.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<HashMap<task::Id, usize>>>);

impl Tasks {
    fn take_down(&self) {
        *self.0.lock().unwrap().entry(task::id()).or_default() += 1;
    }

    /// How many ran in the same.
    fn most(&self) -> usize {
        self.0.lock().unwrap().values().copied().max().unwrap_or(0)
    }
}

/// Two partitions, after whose first records the driver runs the handlers itself.
fn warm() -> (MockKafka, ClientConfig) {
    let kafka = mock("orders", 2, WARM);
    let config = kafka.consumer_config("g");
    (kafka, config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quick_handler_that_blocks_its_thread_is_alone_with_it() {
    let (kafka, config) = warm();
    let (log, tasks, block) = (Log::default(), Tasks::default(), Block::default());
    let (seen, ids, blocks) = (log.clone(), tasks.clone(), block.clone());
    let service = service_fn(move |record: Record| {
        let (seen, ids, blocks) = (seen.clone(), ids.clone(), blocks.clone());
        async move {
            ids.take_down();
            if record.offset() == WARM as i64 && record.partition() == 0 {
                blocks.wait();
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    log.reaches(2 * WARM).await;
    // On a busy machine few look quick, but some do; each of the others has a task of its own.
    assert!(tasks.most() > 1, "the driver runs none of them itself");
    fill(&kafka, "orders", 2, WARM);
    until_committed(&config, "orders", &[WARM as i64, 2 * WARM as i64]).await;
    assert_eq!((log.of(0).len(), log.of(1).len()), (WARM, 2 * WARM));
    block.let_go();
    until_committed(&config, "orders", &[2 * WARM as i64; 2]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(summary.processed, 4 * WARM as u64);
    assert_eq!(log.of(0), (0..2 * WARM as i64).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_handlers_that_wait_share_a_task_and_one_that_blocks_later_is_alone_with_it() {
    let (kafka, config) = warm();
    let (log, tasks, block) = (Log::default(), Tasks::default(), Block::default());
    let (seen, ids, blocks) = (log.clone(), tasks.clone(), block.clone());
    let service = service_fn(move |record: Record| {
        let (seen, ids, blocks) = (seen.clone(), ids.clone(), blocks.clone());
        async move {
            task::yield_now().await;
            if record.offset() == WARM as i64 && record.partition() == 0 {
                blocks.wait();
            }
            tokio::time::sleep(Duration::from_micros(1)).await;
            ids.take_down();
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let consumer = consumer(config.clone(), "orders").with_order(Order::none());
    let serving = serve(consumer, service);
    log.reaches(2 * WARM).await;
    assert!(tasks.most() > 1, "each has a task of its own");
    fill(&kafka, "orders", 2, WARM);
    // All but the one that blocks; those of its partition are finished behind it.
    log.reaches(4 * WARM - 1).await;
    until_committed(&config, "orders", &[WARM as i64, 2 * WARM as i64]).await;
    block.let_go();
    until_committed(&config, "orders", &[2 * WARM as i64; 2]).await;
    assert_eq!(serving.stop().await.unwrap().processed, 4 * WARM as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_handlers_that_wake_themselves_do_not_hold_up_those_that_are_due() {
    const SPIN: usize = 200;
    let (kafka, config) = warm();
    let (log, spins, free) = (Log::default(), Log::default(), Arc::new(AtomicBool::new(false)));
    let (seen, spinning, is_free) = (log.clone(), spins.clone(), free.clone());
    let service = service_fn(move |record: Record| {
        let (seen, spinning, is_free) = (seen.clone(), spinning.clone(), is_free.clone());
        async move {
            match record.offset() - WARM as i64 {
                ..0 => {}
                0..100 => {
                    spinning.push(&record);
                    let is_free = || is_free.load(Ordering::SeqCst);
                    poll_fn(|cx| {
                        cx.waker().wake_by_ref();
                        if is_free() { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                }
                100.. => is_free.store(true, Ordering::SeqCst),
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders").with_order(Order::none()), service);
    log.reaches(2 * WARM).await;
    fill(&kafka, "orders", 2, SPIN / 2);
    spins.reaches(SPIN).await;
    fill(&kafka, "orders", 1, 1);
    log.reaches(2 * WARM + SPIN + 1).await;
    serving.stop().await.unwrap();
}

/// How far the driver was when each was dropped.
#[derive(Clone, Default)]
struct Drops(Arc<(OnceLock<Handle>, Mutex<Vec<Stage>>)>);

impl Drops {
    fn all(&self) -> Vec<Stage> {
        self.0.1.lock().unwrap().clone()
    }
}

/// Tells of its drop, which panics if it is to.
struct Told(Drops, bool);

impl Drop for Told {
    fn drop(&mut self) {
        let (handle, drops) = &*self.0.0;
        drops.lock().unwrap().push(handle.get().unwrap().status().stage);
        assert!(!self.1, "a drop that panics");
    }
}

/// How many wait for ever.
const WAIT: usize = 100;

/// Serves handlers that wait for ever after the first ones, which have made them look quick. One in ten
/// panics when it is dropped.
async fn waiting() -> (MockKafka, Serving, ClientConfig, Drops) {
    let (kafka, config) = warm();
    let (log, waits, drops) = (Log::default(), Log::default(), Drops::default());
    let (seen, waiting, told) = (log.clone(), waits.clone(), drops.clone());
    let service = service_fn(move |record: Record| {
        let (seen, waiting, told) = (seen.clone(), waiting.clone(), told.clone());
        async move {
            if record.offset() >= WARM as i64 {
                let _told = Told(told, record.offset() % 10 == 0);
                waiting.push(&record);
                std::future::pending::<()>().await;
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let consumer = consumer(config.clone(), "orders")
        .with_order(Order::none())
        .with_drain_timeout(Duration::from_millis(50));
    let serving = serve(consumer, service);
    assert!(drops.0.0.set(serving.handle()).is_ok());
    log.reaches(2 * WARM).await;
    fill(&kafka, "orders", 2, WAIT / 2);
    waits.reaches(WAIT).await;
    (kafka, serving, config, drops)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_lets_quick_handlers_go_that_wait_before_it_commits_and_nothing_of_them() {
    let (_kafka, serving, config, drops) = waiting().await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.left), (2 * WARM as u64, WAIT as u64));
    assert_eq!(drops.all(), [Stage::Draining; WAIT]);
    assert_eq!(committed(&config, "orders", 2), [Some(WARM as i64); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_handlers_that_wait_end_with_the_driver_although_drops_panic() {
    let (_kafka, serving, _, drops) = waiting().await;
    serving.drop().await;
    until("all are dropped", || drops.all().len() == WAIT).await;
}

/// Three partitions, after whose first records the driver runs the handlers itself.
struct Blocking {
    kafka: MockKafka,
    config: ClientConfig,
    log: Log,
    blocked: Log,
    block: Block,
    serving: Serving,
}

/// In the first partitions the handlers at these offsets block.
async fn blocking(at: [usize; 2]) -> Blocking {
    let kafka = mock("orders", 3, WARM);
    let config = kafka.consumer_config("g");
    let (log, blocked, block) = (Log::default(), Log::default(), Block::default());
    let (seen, stuck, blocks) = (log.clone(), blocked.clone(), block.clone());
    let service = service_fn(move |record: Record| {
        let (seen, stuck, blocks) = (seen.clone(), stuck.clone(), blocks.clone());
        async move {
            let at = at.get(record.partition() as usize);
            if at.is_some_and(|at| record.offset() == *at as i64) {
                stuck.push(&record);
                blocks.wait();
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let serving = serve(consumer(config.clone(), "orders"), service);
    log.reaches(3 * WARM).await;
    Blocking { kafka, config, log, blocked, block, serving }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_quick_handlers_that_block_their_threads_are_alone_with_it() {
    // The first of partition 0, and much later the one of partition 1.
    let Blocking { kafka, config, log, blocked, block, serving } = blocking([WARM, 4 * WARM]).await;
    fill(&kafka, "orders", 1, 1);
    blocked.reaches(1).await;
    // Meanwhile handlers have to look quick once more.
    fill(&kafka, "orders", 3, 3 * WARM);
    until("partition 1 is there", || log.of(1).len() == 4 * WARM).await;
    fill(&kafka, "orders", 2, 1);
    blocked.reaches(2).await;
    fill(&kafka, "orders", 3, WARM);
    until("partition 2 goes on", || log.of(2).len() == 5 * WARM).await;
    assert_eq!((log.of(0).len(), log.of(1).len()), (WARM, 4 * WARM));
    block.let_go();
    let all = [5 * WARM as i64 + 2, 5 * WARM as i64 + 1, 5 * WARM as i64];
    until_committed(&config, "orders", &all).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn two_quick_handlers_that_block_one_right_after_the_other_leave_a_thread_to_the_others() {
    let Blocking { kafka, config, log, blocked, block, serving } = blocking([WARM, WARM]).await;
    fill(&kafka, "orders", 3, WARM);
    until("the third goes on", || log.of(2).len() == 2 * WARM).await;
    assert_eq!((log.of(0).len(), log.of(1).len(), blocked.len()), (WARM, WARM, 2));
    block.let_go();
    until_committed(&config, "orders", &[2 * WARM as i64; 3]).await;
    serving.stop().await.unwrap();
}

/// What a panic carries, and what panics once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a drop of this test");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_that_carries_what_panics_when_it_is_dropped_is_a_panic() {
    for warm in [0, WARM] {
        let kafka = mock("orders", 1, warm + 3);
        let config = kafka.consumer_config("g");
        let tried = Arc::new(AtomicBool::new(false));
        let service = service_fn(move |record: Record| {
            let tried = tried.clone();
            async move {
                if record.offset() == warm as i64 + 1 && !tried.swap(true, Ordering::SeqCst) {
                    std::panic::panic_any(Bomb);
                }
                Ok::<_, BoxError>(())
            }
        });
        let serving = serve(consumer(config.clone(), "orders"), service);
        until_committed(&config, "orders", &[warm as i64 + 3]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.processed, summary.retried), (warm as u64 + 3, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quick_handler_that_blocks_its_thread_does_not_hold_up_a_shutdown() {
    let (kafka, config) = warm();
    let (log, block) = (Log::default(), Block::default());
    let (seen, blocks) = (log.clone(), block.clone());
    let blocked = Arc::new(AtomicBool::new(false));
    let is_blocked = blocked.clone();
    let service = service_fn(move |record: Record| {
        let (seen, blocks, is_blocked) = (seen.clone(), blocks.clone(), is_blocked.clone());
        async move {
            if record.offset() == WARM as i64 {
                is_blocked.store(true, Ordering::SeqCst);
                blocks.wait();
                // The driver has let it go: what comes after this is not run.
                task::yield_now().await;
            }
            seen.push(&record);
            Ok::<_, BoxError>(())
        }
    });
    let consumer = consumer(config.clone(), "orders").with_drain_timeout(Duration::from_millis(50));
    let serving = serve(consumer, service);
    log.reaches(2 * WARM).await;
    fill(&kafka, "orders", 1, 1);
    until("it is blocked", || blocked.load(Ordering::SeqCst)).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.left), (2 * WARM as u64, 1));
    assert_eq!(committed(&config, "orders", 2), [Some(WARM as i64); 2]);
    block.let_go();
    assert_eq!(log.len(), 2 * WARM);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quick_handler_that_waits_panics_or_fails_is_dealt_with_as_any_other() {
    let (kafka, config) = warm();
    let (log, tries) = (Log::default(), Arc::new(Mutex::new(HashMap::new())));
    let (seen, counts) = (log.clone(), tries.clone());
    let service = service_fn(move |record: Record| {
        let (seen, counts) = (seen.clone(), counts.clone());
        async move {
            let first = counts.lock().unwrap().insert(record.coordinates().clone(), ()).is_none();
            match record.offset() % 1000 {
                300 => tokio::time::sleep(Duration::from_millis(1)).await,
                600 if first => panic!("the first time"),
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
    let serving =
        serve(consumer(config.clone(), "orders").with_order(Order::by_partition()), service);
    until_committed(&config, "orders", &[WARM as i64; 2]).await;
    fill(&kafka, "orders", 2, WARM);
    until_committed(&config, "orders", &[2 * WARM as i64; 2]).await;
    let summary = serving.stop().await.unwrap();
    // In each thousand of each partition one has panicked and one has failed.
    assert_eq!((summary.processed, summary.retried), (4 * WARM as u64, 16));
    for partition in 0..2 {
        assert_eq!(log.of(partition), (0..2 * WARM as i64).collect::<Vec<_>>());
    }
}
