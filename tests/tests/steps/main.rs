//! Steps of a handler over each store, on its real server: the attempt is dropped, or its process
//! crashes, before and after the record of each step.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::lock::Clock;
use campanile::store::Store;
use campanile::{
    Backoff, BoxError, IdempotencyConfig, LockHandle, LockKeeper, MemoryStore, Outcome, PgConfig,
    PgStore, RedisConfig, RedisStore, Runner,
};
use campanile_test::{PgServer, RedisServer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_TTL: Duration = Duration::from_secs(12);
/// As long as the lock keeper waits for a call.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// Where the first attempt stops.
#[derive(Clone, Copy, Debug)]
struct Point {
    step: usize,
    /// Whether the step is recorded by then. Otherwise it has only had its effect.
    is_recorded: bool,
    /// Whether the process crashes, or else only the attempt is dropped.
    crashes: bool,
}

/// The steps that had an effect.
type Effects = Arc<Mutex<Vec<usize>>>;

/// Runs the steps. If the handler is to stop, it reports that and waits forever.
async fn handle(
    lock: LockHandle,
    effects: Effects,
    stop: Option<(Point, mpsc::Sender<()>)>,
) -> Result<Vec<usize>, BoxError> {
    let reach = async |step: usize, is_recorded: bool| {
        if let Some((point, reached)) = &stop
            && (point.step, point.is_recorded) == (step, is_recorded)
        {
            reached.send(()).await.unwrap();
            pending::<()>().await;
        }
    };
    let mut results = Vec::new();
    for (step, name) in STEPS.into_iter().enumerate() {
        let run = async || {
            effects.lock().unwrap().push(step);
            reach(step, false).await;
            Ok::<_, BoxError>(10 + step)
        };
        results.push(lock.step(name, run).await?);
        reach(step, true).await;
    }
    Ok(results)
}

fn runner(keeper: &LockKeeper) -> Runner {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    // Long enough to be renewed beside other load. A crashed process's locks expire together.
    let config = IdempotencyConfig::new("orders").with_lock_ttl(LOCK_TTL);
    Runner::new(keeper, config.with_backoff(backoff)).unwrap()
}

/// Returns how often each step had its effect.
async fn run(store: impl Store, point: Point) -> [usize; 3] {
    let effects = Effects::default();
    let key = format!("{point:?}");
    let (keeper, background) = LockKeeper::pair(store.clone(), Clock::boot());
    let background = tokio::spawn(background);
    let (reached, mut is_reached) = mpsc::channel(1);
    let first = tokio::spawn({
        let (runner, key, effects) = (runner(&keeper), key.clone(), effects.clone());
        async move {
            let stop = Some((point, reached));
            runner.run(key, |lock| handle(lock.unwrap(), effects, stop)).await
        }
    });
    if is_reached.recv().await.is_none() {
        panic!("{point:?} is not reached: {:?}", first.await);
    }
    if point.crashes {
        // Nothing is sent from now on, and the lock has to expire.
        background.abort();
        assert!(background.await.unwrap_err().is_cancelled());
    }
    // A handler whose keeper has crashed may already have lost its lock.
    first.abort();
    assert!(first.await.map_or_else(|error| error.is_cancelled(), |_| point.crashes));

    let next = runner(&LockKeeper::new(store).unwrap());
    loop {
        let run = next.run(key.clone(), |lock| handle(lock.unwrap(), effects.clone(), None));
        match run.await {
            Ok(outcome) => {
                assert_eq!(outcome, Outcome::Processed(vec![10, 11, 12]), "{point:?}");
                break;
            }
            // The lock has not expired, or the backoff has not ended.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
    let effects = effects.lock().unwrap();
    [0, 1, 2].map(|step| effects.iter().filter(|effect| **effect == step).count())
}

async fn check(store: impl Store) {
    let mut runs = JoinSet::new();
    for step in 0..STEPS.len() {
        for (is_recorded, crashes) in [(false, false), (false, true), (true, false), (true, true)] {
            let point = Point { step, is_recorded, crashes };
            let store = store.clone();
            runs.spawn(async move { (point, run(store, point).await) });
        }
    }
    for (point, effects) in timeout(TIMEOUT, runs.join_all()).await.expect("all runs end") {
        let mut expected = [1; 3];
        // Its effect is not recorded, so the next attempt cannot know of it.
        expected[point.step] += usize::from(!point.is_recorded);
        assert_eq!(effects, expected, "{point:?}");
    }
}

#[tokio::test]
async fn memory_runs_no_recorded_step_again() {
    check(MemoryStore::new()).await;
}

#[tokio::test]
async fn redis_runs_no_recorded_step_again() {
    let redis = RedisServer::start().unwrap();
    let config = RedisConfig::new(redis.url()).with_command_timeout(COMMAND_TIMEOUT);
    check(RedisStore::connect(config).await.unwrap()).await;
}

#[tokio::test]
async fn postgres_runs_no_recorded_step_again() {
    let postgres = PgServer::start().unwrap();
    campanile::postgres::migrate(postgres.url()).await.unwrap();
    let config = PgConfig::new(postgres.url()).with_command_timeout(COMMAND_TIMEOUT);
    check(PgStore::connect(config).await.unwrap()).await;
}
