//! What is kept while the store is away, and requests come and leave.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{Answer, BoxError, Command, Operation, Outcome};
use campanile_idempotency::{
    Guard, IdempotencyError, LockKeeper, MemoryStore, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::world::{HOUR, settle_down, store_key};

/// As many as may be in doubt.
const MOST_IN_DOUBT: usize = 16 * 1024;

/// Requests at a time.
const AT_ONCE: usize = 2_000;

/// What the store does with every call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Works,
    Refuses,
    Hangs,
    IsNotReached,
    RefusesCompletions,
}

#[derive(Clone)]
struct Away {
    memory: MemoryStore,
    mode: Arc<Mutex<Mode>>,
}

impl Store for Away {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            Mode::Works => self.memory.apply(command).await,
            Mode::Refuses => Err(StoreError::unavailable("refused")),
            Mode::Hangs => pending().await,
            Mode::IsNotReached => Err(StoreError::not_sent("not reached")),
            Mode::RefusesCompletions => match command.operation {
                Operation::Complete { .. } => Err(StoreError::unavailable("refused")),
                _ => self.memory.apply(command).await,
            },
        }
    }
}

/// The bytes of a key, as long as anybody has it.
struct Kept(Box<[u8]>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests on a store in this mode, and the keys that are kept of them.
struct Scene {
    store: Away,
    keeper: LockKeeper,
    guard: Guard,
    kept: Arc<AtomicUsize>,
}

impl Scene {
    fn new(mode: Mode) -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = Away { memory, mode: Arc::new(Mutex::new(mode)) };
        let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
        tokio::spawn(task);
        let guard = Guard::new(&keeper, "payments").unwrap();
        Self { store, keeper, guard, kept: Arc::default() }
    }

    fn key(&self, number: usize) -> Bytes {
        self.kept.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Kept(number.to_string().into_bytes().into(), self.kept.clone()))
    }

    async fn request(&self, number: usize) -> Result<Outcome<()>, BoxError> {
        self.guard.run(self.key(number), async |_| Ok::<_, BoxError>(())).await
    }

    /// Requests that leave after a second; what they were told, and how many each.
    async fn wave(&self, first: usize) -> BTreeMap<String, usize> {
        let second = Duration::from_secs(1);
        let requests = (first..first + AT_ONCE).map(|n| timeout(second, self.request(n)));
        let mut told = BTreeMap::new();
        for result in join_all(requests).await {
            let what = match result {
                Err(_) => "nothing".into(),
                Ok(Ok(_)) => "done".into(),
                Ok(Err(error)) => match IdempotencyError::find(&*error) {
                    Some(IdempotencyError::Store(error)) => format!("{:?}", error.kind()),
                    other => panic!("{other:?}"),
                },
            };
            *told.entry(what).or_default() += 1;
        }
        told
    }

    fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

/// How many keys are kept at most when so many waves of requests have left; what they were told.
async fn outage(scene: &Scene, waves: usize) -> (usize, BTreeMap<String, usize>) {
    let (mut most, mut told) = (0, BTreeMap::new());
    for wave in 0..waves {
        for (what, count) in scene.wave(wave * AT_ONCE).await {
            *told.entry(what).or_default() += count;
        }
        settle_down().await;
        most = most.max(scene.kept());
    }
    println!("at most {most} are kept; they were told {told:?}");
    *scene.store.mode.lock().unwrap() = Mode::Works;
    // The calls that hang end, and those that wait for their next turn take it.
    sleep(Duration::from_secs(10)).await;
    (most, told)
}

/// All is as if nobody had been there.
async fn works(scene: &Scene, waves: usize) {
    assert_eq!(scene.kept(), 0);
    for number in [0, waves * AT_ONCE / 2, waves * AT_ONCE - 1] {
        assert_eq!(scene.request(number).await.unwrap(), Outcome::Processed(()));
        assert_eq!(scene.store.memory.entry(&store_key(&number.to_string())).unwrap().attempt(), 1);
    }
    assert!(scene.keeper.shutdown(HOUR).await.settled);
}

#[tokio::test(start_paused = true)]
async fn of_a_million_requests_that_a_store_refuses_few_are_kept_and_the_others_are_told_why() {
    const WAVES: usize = 1_000_000 / AT_ONCE;
    let scene = Scene::new(Mode::Refuses);
    let (most, told) = outage(&scene, WAVES).await;
    assert!((MOST_IN_DOUBT..MOST_IN_DOUBT + AT_ONCE).contains(&most), "{most}");
    let kinds = [StoreErrorKind::Overloaded, StoreErrorKind::Unavailable];
    assert!(told.keys().eq(kinds.map(|kind| format!("{kind:?}")).iter()), "{told:?}");
    works(&scene, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn of_requests_that_leave_a_store_which_hangs_few_are_kept() {
    const WAVES: usize = 100;
    let scene = Scene::new(Mode::Hangs);
    let (most, told) = outage(&scene, WAVES).await;
    assert!(most < MOST_IN_DOUBT, "{most}");
    assert!(told.keys().eq(["nothing"]), "{told:?}");
    works(&scene, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_requests_of_which_nothing_was_sent() {
    const WAVES: usize = 10;
    let scene = Scene::new(Mode::IsNotReached);
    let (most, told) = outage(&scene, WAVES).await;
    assert_eq!(most, 0);
    assert!(told.keys().eq(["Unavailable"]), "{told:?}");
    works(&scene, WAVES).await;
}

#[tokio::test(start_paused = true)]
async fn of_completions_that_a_store_refuses_few_are_kept_and_none_is_lost() {
    const WAVES: usize = 20;
    let scene = Scene::new(Mode::RefusesCompletions);
    let (most, told) = outage(&scene, WAVES).await;
    assert!((MOST_IN_DOUBT..MOST_IN_DOUBT + AT_ONCE).contains(&most), "{most}");
    assert!(told.keys().eq(["Overloaded", "nothing"]), "{told:?}");
    for number in 0..told["nothing"] {
        assert!(scene.request(number).await.unwrap().is_duplicate(), "{number}");
    }
    assert!(scene.keeper.shutdown(HOUR).await.settled);
}
