//! A dependency of the handlers that is unavailable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Clock, DecodeLayer, Request, error, key};
use campanile_driver::{Driver, DriverConfig, ProcessingOrder, Router, SourceContext};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore};
use tokio::time::{Instant, sleep, sleep_until};
use tower::ServiceBuilder;

use crate::cluster::Cluster;
use crate::history::History;

const RECORDS: i64 = 2_000;
const MILLI: Duration = Duration::from_millis(1);
const OUTAGE: Duration = Duration::from_secs(20 * 60);

/// What happened to the records of a topic with three partitions.
#[derive(Debug, Default)]
struct Calls {
    /// The calls of the dependency while it was down.
    down: AtomicU32,
    /// The records that were processed while it was down.
    unaffected: AtomicU32,
    done: AtomicU32,
    /// When two thirds of all records were processed, in milliseconds.
    most_done: AtomicU64,
    /// The number of the last attempt, of all records.
    attempt: AtomicU32,
}

/// Serves until all records are processed. `call` says how the dependency answers a record, after this time; it does
/// not answer if there is nothing. Returns the calls, and how long it took after the first 20 minutes.
async fn serve(
    order: ProcessingOrder,
    latency: Duration,
    call: impl Fn(&Request, Duration) -> Option<Result<(), BoxError>> + Clone + Send + Sync + 'static,
) -> (Arc<Calls>, Duration) {
    let cluster = Cluster::new(0, None, History::new(false, 256));
    cluster.stop_faults();
    for partition in 0..3 {
        cluster.state().set_log(partition, (0..RECORDS).collect());
    }
    let start = Instant::now();
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let store = MemoryStore::with_clock(move || epoch + start.elapsed());
    let (keeper, task) = LockKeeper::pair(store, Clock::from_fn(move || start.elapsed()));
    let keeping = tokio::spawn(task);
    let config = IdempotencyConfig::new("orders").with_max_attempts(1_000);
    let layer = IdempotencyLayer::new(&keeper, config, key::coordinates()).expect("valid");
    let calls = Arc::new(Calls::default());
    let (handled, recorded) = (cluster.clone(), calls.clone());
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            let (cluster, calls, call) = (handled.clone(), recorded.clone(), call.clone());
            async move {
                sleep(latency).await;
                let attempt = request.lock().expect("the layer locks").attempt();
                calls.attempt.fetch_max(attempt, Ordering::Relaxed);
                let is_down = start.elapsed() < OUTAGE;
                match call(&request, start.elapsed()) {
                    None => std::future::pending().await,
                    Some(Err(error)) => {
                        calls.down.fetch_add(u32::from(is_down), Ordering::Relaxed);
                        return Err(error);
                    }
                    Some(Ok(())) => {}
                }
                calls.unaffected.fetch_add(u32::from(is_down), Ordering::Relaxed);
                if calls.done.fetch_add(1, Ordering::Relaxed) + 1 == 2 * RECORDS as u32 {
                    let millis = start.elapsed().as_millis() as u64;
                    calls.most_done.store(millis, Ordering::Relaxed);
                }
                let record = request.record();
                let id = (record.partition(), record.offset());
                cluster.state().history.handler_ended(id, true);
                Ok::<_, BoxError>(())
            }
        },
    );

    let context = SourceContext::default();
    let joined = cluster.clone();
    let config = DriverConfig { order, ..DriverConfig::new("g") };
    let driver = Driver::new(config, Router::single(service), {
        move |context: &SourceContext| Ok(joined.join(context.clone()))
    });
    let serving = tokio::spawn(driver.serve_on_current_task(context));
    sleep(Duration::from_millis(500)).await;
    for partition in 0..3 {
        cluster.state().assign(partition);
    }
    sleep_until(start + OUTAGE).await;
    while calls.done.load(Ordering::Relaxed) < 3 * RECORDS as u32 {
        sleep(Duration::from_millis(10)).await;
        assert!(start.elapsed() < 2 * OUTAGE, "{calls:?}");
    }
    serving.abort();
    keeping.abort();
    (calls, start.elapsed() - OUTAGE)
}

fn orders() -> [ProcessingOrder; 3] {
    [ProcessingOrder::by_partition(), ProcessingOrder::by_key(), ProcessingOrder::unordered()]
}

fn unavailable() -> error::Unavailable {
    error::unavailable("timed out")
}

/// A dependency that is down for 20 minutes.
fn down(elapsed: Duration, error: error::Unavailable) -> Option<Result<(), BoxError>> {
    Some(if elapsed < OUTAGE { Err(error.into()) } else { Ok(()) })
}

#[tokio::test(start_paused = true)]
async fn outage_of_a_dependency_counts_no_attempt_and_ends_with_it() {
    for order in orders() {
        let name = format!("{order:?}");
        let (calls, after) = serve(order, MILLI, |_, elapsed| down(elapsed, unavailable())).await;
        println!("{name}: {calls:?}, {after:?}");
        assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
        // Those in flight, and then one probe at a time.
        let down = calls.down.load(Ordering::Relaxed);
        assert!((300..256 + 700).contains(&down), "{down} calls while it was down");
    }
}

#[tokio::test(start_paused = true)]
async fn named_dependency_holds_up_only_the_records_that_need_it() {
    let (calls, after) =
        serve(ProcessingOrder::unordered(), MILLI, |request, elapsed| {
            match request.record().offset() % 2 {
                0 => down(elapsed, unavailable().of("stripe")),
                _ => Some(Ok(())),
            }
        })
        .await;
    println!("{calls:?}, {after:?}");
    assert_eq!(calls.unaffected.load(Ordering::Relaxed), 3 * RECORDS as u32 / 2);
    assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
    // Each that needs it once, and then one probe at a time.
    let down = calls.down.load(Ordering::Relaxed);
    assert!((3_000..3_000 + 700).contains(&down), "{down} calls while it was down");
}

#[tokio::test(start_paused = true)]
async fn record_that_alternates_between_dependencies_is_backed_off() {
    let number = Arc::new(AtomicU32::new(0));
    let (calls, _) = serve(ProcessingOrder::by_partition(), MILLI, move |_, elapsed| {
        let is_even = number.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let name = if is_even { "stripe" } else { "bank" };
        down(elapsed, unavailable().of(name))
    })
    .await;
    println!("{calls:?}");
    assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
    let down = calls.down.load(Ordering::Relaxed);
    assert!(down < 3 * 600, "{down} calls while they were down");
}

/// A dependency that admits 100 calls a second while it is overloaded.
#[tokio::test(start_paused = true)]
async fn dependency_that_admits_some_calls_counts_no_attempt() {
    for order in orders() {
        let second = Arc::new(Mutex::new((0, 0)));
        let (calls, _) = serve(order, MILLI, move |_, elapsed| {
            let mut second = second.lock().expect("no panic");
            if second.0 != elapsed.as_secs() {
                *second = (elapsed.as_secs(), 0);
            }
            second.1 += 1;
            Some(if second.1 > 100 { Err(unavailable().into()) } else { Ok(()) })
        })
        .await;
        println!("{calls:?}");
        assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn probe_that_hangs_does_not_keep_the_others_waiting() {
    // Hangs in the last minutes of the outage, until its lock has been held for the longest time.
    let hangs = Arc::new(AtomicU32::new(0));
    let (calls, after) = serve(ProcessingOrder::by_partition(), MILLI, move |_, elapsed| {
        let is_late = elapsed > OUTAGE - Duration::from_secs(60) && elapsed < OUTAGE;
        match is_late && hangs.fetch_add(1, Ordering::Relaxed) == 0 {
            true => None,
            false => down(elapsed, unavailable()),
        }
    })
    .await;
    println!("{calls:?}, {after:?}");
    // Its own partition waits for it.
    let most_done = Duration::from_millis(calls.most_done.load(Ordering::Relaxed));
    assert!(most_done < OUTAGE + Duration::from_secs(30), "{most_done:?}");
}

#[tokio::test(start_paused = true)]
async fn record_that_is_always_unavailable_fails_while_others_succeed() {
    let (order, latency) = (ProcessingOrder::by_partition(), Duration::from_millis(400));
    let (calls, _) = serve(order, latency, |request, elapsed| {
        let record = request.record();
        let is_one = (record.partition(), record.offset()) == (0, 5);
        if is_one { down(elapsed, unavailable()) } else { Some(Ok(())) }
    })
    .await;
    println!("{calls:?}");
    let attempt = calls.attempt.load(Ordering::Relaxed);
    assert!(attempt > 1, "no attempt was counted");
    // The others did not wait for it.
    let most_done = Duration::from_millis(calls.most_done.load(Ordering::Relaxed));
    assert!(most_done < latency * RECORDS as u32 * 11 / 10, "{most_done:?}");
}
