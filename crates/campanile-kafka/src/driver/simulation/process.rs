//! A process that serves the simulated topic, and is stopped and restarted at random.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::{BoxError, Clock, DecodeLayer, Record, Request, key};
use campanile_idempotency::{Backoff, IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_test::faults::{Fault, FaultyStore};
use futures_util::TryFutureExt;
use futures_util::future::{Either, select};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use super::cluster::Cluster;
use super::history::{History, Place};
use super::planted::{Bug, plant};
use crate::dead_letter::Targets;
use crate::driver::{
    Amount, Driver, RecordSpans, Services, Settings, Shutdown, Switch, Usage, Vitals,
};
use crate::flood::FloodGuard;
use crate::given_up::Fate;
use crate::order::Order;
use crate::policies::{Classifiers, Policies};
use crate::retention::Retentions;
use crate::retry_topics::Sources;
use crate::routes::{Router, ServiceRoute};

/// How long faults are injected.
const FAULTS: Duration = Duration::from_secs(6);

/// The time by which all records are processed and committed, for any seed.
const END: Duration = Duration::from_secs(3600);

const MAX_IN_FLIGHT: usize = 4;

/// Runs one seed. Panics if a guarantee is violated.
pub(super) fn simulate(seed: u64, bug: Option<Bug>) -> History {
    plant(bug);
    // The layer and the driver draw from this thread's generator, which must be seeded as well.
    fastrand::seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("the runtime is built");
    let history = runtime.block_on(run(seed));
    plant(None);
    history
}

async fn run(seed: u64) -> History {
    let by_partition = seed.is_multiple_of(2);
    let cluster = Cluster::new(seed, History::new(by_partition, MAX_IN_FLIGHT));
    let start = Instant::now();
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let memory = MemoryStore::with_clock(move || epoch + start.elapsed());
    let store = FaultyStore::new(memory);
    answer_late(&cluster, &store);
    let clock = Clock::from_fn(move || start.elapsed());
    let chaos = async {
        let mut rebalances = std::pin::pin!(cluster.rebalance());
        let mut outages = std::pin::pin!(outages(&cluster, &store));
        let mut calm = std::pin::pin!(sleep(FAULTS));
        loop {
            tokio::select! {
                biased;
                () = &mut rebalances => return,
                () = &mut calm, if !cluster.is_calm() => cluster.calm(),
                never = &mut outages => match never {},
            }
        }
    };
    let mut chaos = std::pin::pin!(chaos);
    let ended = timeout(END, async {
        loop {
            let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clone());
            let keeping = tokio::spawn(task);
            let served = serve(&cluster, keeper, by_partition);
            let is_done =
                matches!(select(std::pin::pin!(served), &mut chaos).await, Either::Right(_));
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

/// Makes the store unavailable at random.
async fn outages(cluster: &Cluster, store: &FaultyStore<MemoryStore>) -> Infallible {
    loop {
        let (up, down) = {
            let random = &mut cluster.state().random;
            (random.u64(200..6_000), random.u64(1..1_500))
        };
        sleep(Duration::from_millis(up)).await;
        if cluster.state().calm {
            return std::future::pending().await;
        }
        store.always(Fault::Refuse);
        sleep(Duration::from_millis(down)).await;
        store.heal();
        answer_late(cluster, store);
    }
}

/// Makes the store answer some calls with a delay.
fn answer_late(cluster: &Cluster, store: &FaultyStore<MemoryStore>) {
    let seed = cluster.state().random.u64(..);
    let late = |millis| Fault::Slow(Duration::from_millis(millis));
    store.at_random(seed, [(0.4, late(1)), (0.1, late(30))]);
}

/// Serves until a shutdown at a random time.
async fn serve(cluster: &Cluster, keeper: LockKeeper, by_partition: bool) {
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1)).expect("valid");
    let layer = IdempotencyLayer::new(&keeper, "orders", key::coordinates()).expect("valid");
    let layer = layer.with_max_attempts(60_000).expect("valid").with_backoff(backoff);
    let handled = cluster.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |request: Request| {
            let key = request.record().key().map(|key| String::from_utf8_lossy(key).into_owned());
            handle(handled.clone(), place(request.record()), key.unwrap_or_default())
        },
    );
    let answered = cluster.clone();
    let service = service_fn(move |record: Record| {
        let (service, cluster, place) = (service.clone(), answered.clone(), place(&record));
        service.oneshot(record).inspect_ok(move |_| cluster.state().history.answered(place))
    });
    let switch = Switch::new(Vitals::new(Duration::MAX));
    let control = switch.control().clone();
    let total: Arc<Usage> = Arc::default();
    let settings = Settings {
        budget: Amount { records: 12, bytes: 1 << 20 },
        total: total.clone(),
        drain_timeout: Duration::from_millis(300),
        revoke_timeout: Duration::from_millis(300),
        commit_interval: Duration::from_millis(200),
        has_outputs: false,
    };
    let services = Services {
        router: Router::single(ServiceRoute::new(service, None)),
        runtime: Handle::current(),
        spans: Arc::new(RecordSpans { group: "g".into(), level: tracing::Level::DEBUG }),
    };
    let source = cluster.join(total.clone());
    let driver = Driver::new(source, policies(by_partition), services, switch, settings);
    let stop = async {
        let after = cluster.state().random.u64(100..8_000);
        sleep(Duration::from_millis(after)).await;
        if cluster.state().calm {
            return std::future::pending().await;
        }
        control.shutdown(Shutdown::Graceful);
        std::future::pending::<()>().await
    };
    match select(std::pin::pin!(driver.run()), std::pin::pin!(stop)).await {
        Either::Left(((result, _), _)) => {
            let summary = result.expect("nothing stops the consumer");
            let ended = summary.processed + summary.revoked + summary.left;
            assert_eq!(summary.received, ended, "every record is accounted for: {summary:?}");
            assert_eq!(total.total(), Amount::default(), "the whole budget is released");
        }
        Either::Right(((), _)) => unreachable!("the stop future never completes"),
    }
}

fn place(record: &Record) -> Place {
    (record.partition(), record.offset())
}

fn policies(by_partition: bool) -> Policies {
    let order = if by_partition { Order::by_partition() } else { Order::by_key() };
    Policies {
        order: Arc::new(order),
        far: 12,
        commits_start: false,
        max_in_flight: MAX_IN_FLIGHT,
        given_up: Fate::Stop,
        flood_guard: FloodGuard::off(),
        stall: Duration::from_secs(60),
        retentions: Retentions::off(),
        targets: Targets::default(),
        ladder: None,
        sources: Sources::new(&[]),
        classifiers: Classifiers(Vec::new()),
    }
}

/// A handler that takes a random time, and fails or panics at random.
async fn handle(cluster: Cluster, place: Place, key: String) -> Result<(), BoxError> {
    let (takes, outcome) = {
        let mut state = cluster.state();
        state.history.starts(place, &key);
        let takes = match state.random.u8(..) {
            0..200 => state.random.u64(0..5),
            200..250 => state.random.u64(0..100),
            _ => state.random.u64(0..1_000),
        };
        (takes, if state.calm { 255 } else { state.random.u8(..) })
    };
    let mut ends = Ends { cluster, place, processed: false };
    sleep(Duration::from_millis(takes)).await;
    match outcome {
        0..20 => return Err("refused".into()),
        // `resume_unwind` skips the panic hook, which would print a backtrace for each panic.
        20..30 => resume_unwind(Box::new("a panic of this test")),
        _ => {}
    }
    ends.processed = true;
    Ok(())
}

/// Adds the end of a handler to the history on drop, however the handler ends.
struct Ends {
    cluster: Cluster,
    place: Place,
    processed: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.cluster.state().history.ends(self.place, self.processed);
    }
}
