//! A process that serves the simulated topic, and is stopped and restarted at random.

use std::convert::Infallible;
use std::ops::Range;
use std::panic::resume_unwind;
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Clock, DecodeLayer, Record, Request, error, key};
use campanile_driver::source::Amount;
use campanile_driver::{Driver, DriverConfig, ProcessingOrder, Router, SeekTo, SourceContext};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore,
};
use campanile_test::faults::{Fault, FaultyStore};
use futures_util::future::{Either, join, select};
use futures_util::{FutureExt, TryFutureExt};
use tokio::time::{Instant, sleep, timeout};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::cluster::{Bug, Cluster, TOPIC};
use crate::history::{History, RecordId};

/// How long faults are injected.
const FAULT_PERIOD: Duration = Duration::from_secs(6);

/// The time by which all records are processed and committed, for any seed.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

const MAX_IN_FLIGHT: usize = 4;

/// Runs one seed. Panics if a guarantee is violated.
pub(crate) fn simulate(seed: u64, bug: Option<Bug>) -> History {
    // The layer and the driver draw from this thread's generator, which must be seeded as well.
    fastrand::seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("the runtime is built");
    runtime.block_on(run(seed, bug))
}

async fn run(seed: u64, bug: Option<Bug>) -> History {
    let by_partition = is_by_partition(seed);
    let cluster = Cluster::new(seed, bug, History::new(by_partition, MAX_IN_FLIGHT));
    let start = Instant::now();
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let memory = MemoryStore::with_clock(move || epoch + start.elapsed());
    let store = FaultyStore::new(memory);
    delay_answers(&cluster, &store);
    let clock = Clock::from_fn(move || start.elapsed());
    let faults = async {
        let mut rebalances = std::pin::pin!(cluster.rebalance());
        let mut outages = std::pin::pin!(outages(&cluster, &store));
        let mut dependency = std::pin::pin!(dependency_outages(&cluster));
        let mut fault_period = std::pin::pin!(sleep(FAULT_PERIOD));
        loop {
            tokio::select! {
                biased;
                () = &mut rebalances => return,
                () = &mut fault_period, if !cluster.are_faults_stopped() => cluster.stop_faults(),
                never = &mut outages => match never {},
                never = &mut dependency => match never {},
            }
        }
    };
    let mut faults = std::pin::pin!(faults);
    let ended = timeout(TIME_LIMIT, async {
        loop {
            let (keeper, task) = LockKeeper::pair(store.clone(), clock.clone());
            let keeping = tokio::spawn(task);
            let served = serve(&cluster, keeper, seed, bug);
            let is_done =
                matches!(select(std::pin::pin!(served), &mut faults).await, Either::Right(_));
            keeping.abort();
            if is_done {
                return;
            }
        }
    });
    assert!(ended.await.is_ok(), "not all records are processed and committed");
    let mut state = cluster.state();
    std::mem::replace(&mut state.history, History::new(by_partition, MAX_IN_FLIGHT))
}

fn is_by_partition(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Makes the store unavailable at random.
async fn outages(cluster: &Cluster, store: &FaultyStore<MemoryStore>) -> Infallible {
    let end = || {
        store.heal();
        delay_answers(cluster, store);
    };
    alternate(cluster, 200..6_000, 1..1_500, || store.inject_always(Fault::Refuse), end).await
}

/// Takes what handlers depend on away at random.
async fn dependency_outages(cluster: &Cluster) -> Infallible {
    let begin = || cluster.state().history.dependency_down();
    let end = || cluster.state().history.dependency_up();
    alternate(cluster, 500..4_000, 1..3_000, begin, end).await
}

/// Begins and ends a fault at random, after times in milliseconds.
async fn alternate(
    cluster: &Cluster,
    up: Range<u64>,
    down: Range<u64>,
    begin: impl Fn(),
    end: impl Fn(),
) -> Infallible {
    loop {
        let (up, down) = {
            let random = &mut cluster.state().random;
            (random.u64(up.clone()), random.u64(down.clone()))
        };
        sleep(Duration::from_millis(up)).await;
        if cluster.state().faults_stopped {
            return std::future::pending().await;
        }
        begin();
        sleep(Duration::from_millis(down)).await;
        end();
    }
}

/// Makes the store answer some calls with a delay.
fn delay_answers(cluster: &Cluster, store: &FaultyStore<MemoryStore>) {
    let seed = cluster.state().random.u64(..);
    let slow = |millis| Fault::Slow(Duration::from_millis(millis));
    store.inject_randomly(seed, [(0.4, slow(1)), (0.1, slow(30))]);
}

/// Serves until a shutdown at a random time.
async fn serve(cluster: &Cluster, keeper: LockKeeper, seed: u64, bug: Option<Bug>) {
    let (by_partition, is_named) = (is_by_partition(seed), seed.is_multiple_of(3));
    cluster.state().history.interrupted();
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1)).expect("valid");
    let config = IdempotencyConfig::new("orders").with_max_attempts(60_000).with_backoff(backoff);
    let layer = IdempotencyLayer::new(&keeper, config, key::coordinates()).expect("valid");
    let handled = cluster.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            let key = request.record().key().map(|key| String::from_utf8_lossy(key).into_owned());
            handle(
                handled.clone(),
                record_id(request.record()),
                key.unwrap_or_default(),
                bug,
                is_named,
            )
        },
    );
    let answered = cluster.clone();
    let service = service_fn(move |record: Record| {
        let (service, cluster, record_id) = (service.clone(), answered.clone(), record_id(&record));
        service.oneshot(record).inspect_ok(move |_| cluster.state().history.answered(record_id))
    });
    let (context, joined) = (SourceContext::default(), cluster.clone());
    let (handle, usage) = (context.handle(), context.usage().clone());
    let driver = Driver::new(driver_config(by_partition, bug), Router::single(service), {
        move |context: &SourceContext| Ok(joined.join(context.clone()))
    });
    let stop = async {
        let after = cluster.state().random.u64(100..8_000);
        sleep(Duration::from_millis(after)).await;
        if cluster.state().faults_stopped {
            return std::future::pending().await;
        }
        handle.shutdown();
        std::future::pending::<()>().await
    };
    let seeks = async {
        loop {
            let (after, partition) = {
                let random = &mut cluster.state().random;
                (random.u64(100..3_000), random.i32(0..3))
            };
            sleep(Duration::from_millis(after)).await;
            if cluster.state().faults_stopped {
                return std::future::pending().await;
            }
            // Whether it succeeds depends on the other faults.
            handle.seek(TOPIC, partition, SeekTo::Beginning).now_or_never();
        }
    };
    let faults = async { join(stop, seeks).await.0 };
    let serving = std::pin::pin!(driver.serve_on_current_task(context));
    match select(serving, std::pin::pin!(faults)).await {
        Either::Left((result, _)) => {
            let summary = result.expect("nothing stops the consumer");
            let ended = summary.processed + summary.revoked + summary.unfinished;
            assert_eq!(summary.received, ended, "every record is accounted for: {summary:?}");
            assert_eq!(usage.total(), Amount::default(), "the whole budget is released");
        }
        Either::Right(((), _)) => unreachable!("the stop future never completes"),
    }
}

fn record_id(record: &Record) -> RecordId {
    (record.partition(), record.offset())
}

fn driver_config(by_partition: bool, bug: Option<Bug>) -> DriverConfig {
    let order = match bug {
        Some(Bug::IgnoresOrder) => ProcessingOrder::unordered(),
        _ if by_partition => ProcessingOrder::by_partition(),
        _ => ProcessingOrder::by_key(),
    };
    DriverConfig {
        order,
        budget: Amount { records: 12, bytes: 1 << 20 },
        max_in_flight: MAX_IN_FLIGHT + usize::from(bug == Some(Bug::ExceedsLimit)),
        drain_timeout: Duration::from_millis(300),
        revoke_timeout: Duration::from_millis(300),
        ..DriverConfig::new("g")
    }
}

/// A handler that takes a random time, and fails or panics at random, or because the dependency is down.
async fn handle(
    cluster: Cluster,
    record_id: RecordId,
    key: String,
    bug: Option<Bug>,
    is_named: bool,
) -> Result<(), BoxError> {
    let (millis, outcome) = {
        let mut state = cluster.state();
        state.history.handler_started(record_id, &key);
        let millis = match state.random.u8(..) {
            0..200 => state.random.u64(0..5),
            200..250 => state.random.u64(0..100),
            _ => state.random.u64(0..1_000),
        };
        (millis, if state.faults_stopped { 255 } else { state.random.u8(..) })
    };
    let mut end_guard = EndGuard { cluster, record_id, processed: false };
    sleep(Duration::from_millis(millis)).await;
    if end_guard.cluster.state().history.calls_dependency(record_id, is_named) {
        let unavailable = error::unavailable("timed out");
        return Err(match bug {
            Some(Bug::HidesOutage) => "timed out".into(),
            _ if is_named => unavailable.of("billing").into(),
            _ => unavailable.into(),
        });
    }
    match outcome {
        0..20 => return Err("refused".into()),
        // `resume_unwind` skips the panic hook, which would print a backtrace for each panic.
        20..30 => resume_unwind(Box::new("a panic of this test")),
        _ => {}
    }
    end_guard.processed = true;
    Ok(())
}

/// Adds the end of a handler to the history on drop, however the handler ends.
struct EndGuard {
    cluster: Cluster,
    record_id: RecordId,
    processed: bool,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.cluster.state().history.handler_ended(self.record_id, self.processed);
    }
}
