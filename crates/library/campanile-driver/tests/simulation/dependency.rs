//! A dependency of the handlers that is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Clock, DecodeLayer, Request, error, key};
use campanile_driver::{Driver, DriverConfig, ProcessingOrder, Router, SourceContext};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore};
use tokio::time::{Instant, sleep, sleep_until};
use tower::ServiceBuilder;

use crate::cluster::Cluster;
use crate::history::History;

const RECORDS: i64 = 2_000;
const OUTAGE: Duration = Duration::from_secs(20 * 60);

/// What happened to the records of a topic with three partitions.
#[derive(Debug, Default)]
struct Calls {
    /// The calls of the dependency while it was down.
    down: AtomicU32,
    /// The records that were processed while it was down.
    unaffected: AtomicU32,
    done: AtomicU32,
    /// The number of the last attempt, of all records.
    attempt: AtomicU32,
}

/// Serves until all records are processed. The records for which `needs` holds call a dependency that is down for
/// the first 20 minutes. Returns the calls, and how long it took after that.
async fn serve(
    order: ProcessingOrder,
    needs: fn(&Request) -> bool,
    unavailable: fn() -> BoxError,
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
            let (cluster, calls) = (handled.clone(), recorded.clone());
            async move {
                sleep(Duration::from_millis(1)).await;
                let is_down = start.elapsed() < OUTAGE;
                if is_down && needs(&request) {
                    calls.down.fetch_add(1, Ordering::Relaxed);
                    return Err(unavailable());
                }
                if is_down {
                    calls.unaffected.fetch_add(1, Ordering::Relaxed);
                }
                let attempt = request.lock().expect("the layer locks").attempt();
                calls.attempt.fetch_max(attempt, Ordering::Relaxed);
                calls.done.fetch_add(1, Ordering::Relaxed);
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

#[tokio::test(start_paused = true)]
async fn outage_of_a_dependency_counts_no_attempt_and_ends_with_it() {
    for order in orders() {
        let name = format!("{order:?}");
        let (calls, after) =
            serve(order, |_| true, || error::unavailable("timed out").into()).await;
        println!("{name}: {calls:?}, {after:?}");
        assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
        // Those in flight, and then one probe at a time.
        let down = calls.down.load(Ordering::Relaxed);
        assert!((300..256 + 1_200).contains(&down), "{down} calls while it was down");
    }
}

#[tokio::test(start_paused = true)]
async fn named_dependency_holds_up_only_the_records_that_need_it() {
    let is_even = |request: &Request| request.record().offset() % 2 == 0;
    let stripe = || error::unavailable("timed out").of("stripe").into();
    let (calls, after) = serve(ProcessingOrder::unordered(), is_even, stripe).await;
    println!("{calls:?}, {after:?}");
    assert_eq!(calls.unaffected.load(Ordering::Relaxed), 3 * RECORDS as u32 / 2);
    assert_eq!(calls.attempt.load(Ordering::Relaxed), 1);
    // Each that needs it once, and then one probe at a time.
    let down = calls.down.load(Ordering::Relaxed);
    assert!((3_000..3_000 + 1_200).contains(&down), "{down} calls while it was down");
}

#[tokio::test(start_paused = true)]
async fn record_that_is_always_unavailable_fails_while_others_succeed() {
    let is_one =
        |request: &Request| (request.record().partition(), request.record().offset()) == (0, 5);
    for order in orders() {
        let name = format!("{order:?}");
        let (calls, _) = serve(order, is_one, || error::unavailable("503").into()).await;
        println!("{name}: {calls:?}");
        // Those that did not count, and those that did.
        let attempt = calls.attempt.load(Ordering::Relaxed);
        assert!(attempt > 1, "no attempt was counted");
    }
}
