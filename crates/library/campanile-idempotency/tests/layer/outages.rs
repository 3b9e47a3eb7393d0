//! What is kept in memory while the store is unavailable and requests come and go.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{Answer, BoxError, Command, Operation, Outcome};
use campanile_idempotency::{
    IdempotencyError, LockKeeper, MemoryStore, Runner, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::harness::{HOUR, run_until_idle, store_key};

/// The maximum number of keys in doubt.
const MAX_IN_DOUBT: usize = 16 * 1024;

/// The number of concurrent requests.
const WAVE_SIZE: usize = 2_000;

/// What the store does with every call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Works,
    Refuses,
    Hangs,
    IsUnreachable,
    RefusesCompletions,
}

#[derive(Clone)]
struct FailingStore {
    memory: MemoryStore,
    mode: Arc<Mutex<Mode>>,
}

impl Store for FailingStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            Mode::Works => self.memory.apply(command).await,
            Mode::Refuses => Err(StoreError::unavailable("refused")),
            Mode::Hangs => pending().await,
            Mode::IsUnreachable => Err(StoreError::not_sent("not reached")),
            Mode::RefusesCompletions => match command.operation {
                Operation::Complete { .. } => Err(StoreError::unavailable("refused")),
                _ => self.memory.apply(command).await,
            },
        }
    }
}

/// The bytes of a key, which count as kept until they are dropped.
struct CountedKey(Box<[u8]>, Arc<AtomicUsize>);

impl AsRef<[u8]> for CountedKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for CountedKey {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests on a store in this mode, and the number of keys that are kept for them.
struct Scenario {
    store: FailingStore,
    keeper: LockKeeper,
    runner: Runner,
    kept_keys: Arc<AtomicUsize>,
}

impl Scenario {
    fn new(mode: Mode) -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = FailingStore { memory, mode: Arc::new(Mutex::new(mode)) };
        let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
        tokio::spawn(task);
        let runner = Runner::new(&keeper, "payments").unwrap();
        Self { store, keeper, runner, kept_keys: Arc::default() }
    }

    fn key(&self, number: usize) -> Bytes {
        self.kept_keys.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(CountedKey(
            number.to_string().into_bytes().into(),
            self.kept_keys.clone(),
        ))
    }

    async fn request(&self, number: usize) -> Result<Outcome<()>, BoxError> {
        self.runner.run(self.key(number), async |_| Ok::<_, BoxError>(())).await
    }

    /// Runs requests that are dropped after a second, and counts the requests of each result.
    async fn wave(&self, first: usize) -> BTreeMap<String, usize> {
        let second = Duration::from_secs(1);
        let requests = (first..first + WAVE_SIZE).map(|n| timeout(second, self.request(n)));
        let mut outcomes = BTreeMap::new();
        for result in join_all(requests).await {
            let description = match result {
                Err(_) => "dropped".into(),
                Ok(Ok(_)) => "done".into(),
                Ok(Err(error)) => match IdempotencyError::find(&*error) {
                    Some(IdempotencyError::Store(error)) => format!("{:?}", error.kind()),
                    other => panic!("{other:?}"),
                },
            };
            *outcomes.entry(description).or_default() += 1;
        }
        outcomes
    }

    fn kept_keys(&self) -> usize {
        self.kept_keys.load(Ordering::Relaxed)
    }
}

/// Runs this many waves of requests. Finds the maximum number of keys kept after a wave, and counts
/// each result.
async fn run_outage(scenario: &Scenario, waves: usize) -> (usize, BTreeMap<String, usize>) {
    let (mut max_kept, mut outcomes) = (0, BTreeMap::new());
    for wave in 0..waves {
        for (description, count) in scenario.wave(wave * WAVE_SIZE).await {
            *outcomes.entry(description).or_default() += count;
        }
        run_until_idle().await;
        max_kept = max_kept.max(scenario.kept_keys());
    }
    println!("at most {max_kept} keys kept; results: {outcomes:?}");
    *scenario.store.mode.lock().unwrap() = Mode::Works;
    // Hanging calls end, and queued commands are sent.
    sleep(Duration::from_secs(10)).await;
    (max_kept, outcomes)
}

/// Asserts that the requests have left nothing behind.
async fn assert_recovered(scenario: &Scenario, waves: usize) {
    assert_eq!(scenario.kept_keys(), 0);
    for number in [0, waves * WAVE_SIZE / 2, waves * WAVE_SIZE - 1] {
        assert_eq!(scenario.request(number).await.unwrap(), Outcome::Processed(()));
        assert_eq!(
            scenario.store.memory.entry(&store_key(&number.to_string())).unwrap().attempt(),
            1
        );
    }
    assert!(scenario.keeper.shutdown(HOUR).await.settled);
}

#[tokio::test(start_paused = true)]
async fn refusing_store_bounds_keys_in_doubt_and_reports_errors() {
    const WAVES: usize = 1_000_000 / WAVE_SIZE;
    let scenario = Scenario::new(Mode::Refuses);
    let (max_kept, outcomes) = run_outage(&scenario, WAVES).await;
    assert!((MAX_IN_DOUBT..MAX_IN_DOUBT + WAVE_SIZE).contains(&max_kept), "{max_kept}");
    let kinds = [StoreErrorKind::Overloaded, StoreErrorKind::Unavailable];
    assert!(outcomes.keys().eq(kinds.map(|kind| format!("{kind:?}")).iter()), "{outcomes:?}");
    assert_recovered(&scenario, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_store_bounds_kept_requests() {
    const WAVES: usize = 100;
    let scenario = Scenario::new(Mode::Hangs);
    let (max_kept, outcomes) = run_outage(&scenario, WAVES).await;
    assert!(max_kept < MAX_IN_DOUBT, "{max_kept}");
    assert!(outcomes.keys().eq(["dropped"]), "{outcomes:?}");
    assert_recovered(&scenario, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn unsent_requests_are_not_kept() {
    const WAVES: usize = 10;
    let scenario = Scenario::new(Mode::IsUnreachable);
    let (max_kept, outcomes) = run_outage(&scenario, WAVES).await;
    assert_eq!(max_kept, 0);
    assert!(outcomes.keys().eq(["Unavailable"]), "{outcomes:?}");
    assert_recovered(&scenario, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn refused_completions_are_bounded_and_none_is_lost() {
    const WAVES: usize = 20;
    let scenario = Scenario::new(Mode::RefusesCompletions);
    let (max_kept, outcomes) = run_outage(&scenario, WAVES).await;
    assert!((MAX_IN_DOUBT..MAX_IN_DOUBT + WAVE_SIZE).contains(&max_kept), "{max_kept}");
    assert!(outcomes.keys().eq(["Overloaded", "dropped"]), "{outcomes:?}");
    for number in 0..outcomes["dropped"] {
        assert!(scenario.request(number).await.unwrap().is_duplicate(), "{number}");
    }
    assert!(scenario.keeper.shutdown(HOUR).await.settled);
}
