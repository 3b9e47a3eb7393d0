//! One process with its keeper, on a clock that tokio's paused time moves, over a memory store with
//! faults; and others like it.

use std::fmt::Debug;
use std::time::Duration;

use campanile_core::{
    BoxError, Command, Entry, Grant, IdempotencyKey, KeyExtractor, Lock, Operation, Outcome, Owner,
    Record, Request, Retention, State, StoreKey, key,
};
use campanile_idempotency::{
    Exhausted, Failed, IdempotencyError, IdempotencyLayer, LockKeeper, MemoryStore, Store,
};
use campanile_test::TestClock;
use campanile_test::faults::FaultyStore;
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock::{self, Mock};

pub(crate) type TestLayer = IdempotencyLayer<key::Key<key::Header>>;

/// A handler that the test plays itself.
pub(crate) type Handler = Mock<Request<()>, &'static str>;
pub(crate) type Stage = mock::Handle<Request<()>, &'static str>;

/// What a call comes to.
pub(crate) type Called<T = &'static str> = Result<Outcome<T>, BoxError>;

/// The layer's default.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Longer than anything here takes.
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

pub(crate) struct World {
    pub(crate) clock: TestClock,
    pub(crate) memory: MemoryStore,
    pub(crate) store: FaultyStore<MemoryStore>,
    pub(crate) keeper: LockKeeper,
    task: JoinHandle<()>,
    crashed: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        Self::process(clock, memory)
    }

    /// Another process on the same store, with faults of its own.
    pub(crate) fn neighbour(&self) -> Self {
        Self::process(self.clock.clone(), self.memory.clone())
    }

    fn process(clock: TestClock, memory: MemoryStore) -> Self {
        let store = FaultyStore::new(memory.clone());
        let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
        Self { clock, memory, store, keeper, task: tokio::spawn(task), crashed: false }
    }

    pub(crate) fn layer(&self) -> TestLayer {
        IdempotencyLayer::new(&self.keeper, "payments", key::header("id")).unwrap()
    }

    /// The layer's service around a handler that the test plays.
    pub(crate) fn staged(&self, layer: TestLayer) -> (impl Guarding<&'static str> + use<>, Stage) {
        let (handler, stage): (Handler, Stage) = mock::pair();
        (layer.layer(handler), stage)
    }

    pub(crate) fn entry(&self, id: &str) -> Option<Entry> {
        self.memory.entry(&store_key(id))
    }

    /// Somebody else is granted the key, as after a failover that lost the grant there was.
    pub(crate) async fn usurp(&self, id: &str) {
        let entry = self.entry(id).unwrap();
        let (token, owner) = (entry.token(), entry.owner().unwrap());
        let grant = Grant { token, owner };
        let usurper = Operation::Acquire {
            owner: Owner::new(1).unwrap(),
            ttl: HOUR,
            max_attempts: 0,
            fingerprint: None,
            floor: token,
        };
        for operation in [Operation::Release { grant, ran: false }, usurper] {
            let command =
                Command { key: store_key(id), operation, retention: Retention::default() };
            self.memory.apply(command).await.unwrap();
        }
    }

    pub(crate) fn state(&self, id: &str) -> Option<State> {
        self.entry(id).map(|entry| entry.state())
    }

    /// The process dies: what its keeper knew is gone, and nothing more is said to the store.
    pub(crate) async fn crash(&mut self) {
        self.crashed = true;
        self.task.abort();
        let ended = (&mut self.task).await;
        assert!(ended.unwrap_err().is_cancelled(), "the keeper panicked");
    }

    /// Nothing is held, and nothing is left to be said to the store.
    pub(crate) async fn assert_quiet(&self) {
        let report = self.keeper.shutdown(HOUR).await;
        assert!(report.settled, "the keeper is left with something");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It ends when its last handle is gone, and that is here.
        let ended = self.task.is_finished() && !self.crashed;
        assert!(!ended || std::thread::panicking(), "the keeper panicked");
    }
}

/// A service of the layer's, as the tests call it.
pub(crate) trait Guarding<T>: Clone + Send + 'static {
    /// Calls it in a task of its own.
    fn start(&self, request: Request<()>) -> JoinHandle<Called<T>>;

    /// Calls it for a request with this key, and waits.
    async fn run(&self, id: &str) -> Called<T> {
        self.start(request(id)).await.unwrap()
    }
}

impl<S, T> Guarding<T> for S
where
    S: Service<Request<()>, Response = Outcome<T>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    T: Send + 'static,
{
    fn start(&self, request: Request<()>) -> JoinHandle<Called<T>> {
        let service = self.clone();
        tokio::spawn(service.oneshot(request))
    }
}

pub(crate) fn request(id: &str) -> Request<()> {
    let record = Record::builder("payments", 0, 0).header("id", id.to_owned());
    Request::new(record.build(), ())
}

/// A layer that compares the payloads of a key.
pub(crate) fn fingerprinting(
    world: &World,
) -> IdempotencyLayer<impl KeyExtractor<Request<()>> + Send + Sync + use<>> {
    let by_payload = key::header("id").fingerprint_by(|request: &Request<()>, parts| {
        parts.update(request.record().payload().unwrap());
    });
    IdempotencyLayer::new(&world.keeper, "payments", by_payload).unwrap()
}

/// A request with a payload for it.
pub(crate) fn paying(id: &str, cents: &'static str) -> Request<()> {
    let record = Record::builder("payments", 0, 0).header("id", id.to_owned());
    Request::new(record.payload(cents).build(), ())
}

pub(crate) fn store_key(id: &str) -> StoreKey {
    let key = IdempotencyKey::new(id.to_owned()).unwrap();
    StoreKey::new("payments".try_into().unwrap(), key)
}

/// The layer's error in what a call came to.
pub(crate) fn refusal<T: Debug>(called: &Called<T>) -> &IdempotencyError {
    let error = called.as_ref().unwrap_err();
    IdempotencyError::find(&**error).unwrap()
}

/// A handler that always fails so.
pub(crate) fn failing<F>(layer: &TestLayer, fail: F) -> impl Guarding<()> + use<F>
where
    F: Fn() -> BoxError + Clone + Send + 'static,
{
    layer.layer(service_fn(move |_: Request<()>| {
        let error = fail();
        async move { Err::<(), BoxError>(error) }
    }))
}

pub(crate) fn failed<T: Debug>(called: &Called<T>) -> &Failed {
    match refusal(called) {
        IdempotencyError::Failed(failed) => failed,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn exhausted<T: Debug>(called: &Called<T>) -> &Exhausted {
    match refusal(called) {
        IdempotencyError::Exhausted(exhausted) => exhausted,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn lock(request: &Request<()>) -> Lock {
    request.lock().unwrap().clone()
}

/// Lets everybody do what can be done at once.
pub(crate) async fn settle_down() {
    // Paused time goes on only when nobody has anything to do.
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Whether the call has not come to anything, although everybody had time to do what they can.
pub(crate) async fn is_pending<T>(call: &JoinHandle<Called<T>>) -> bool {
    settle_down().await;
    !call.is_finished()
}
