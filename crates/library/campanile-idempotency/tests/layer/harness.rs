//! One process with its keeper, over a memory store with faults and on a clock driven by tokio's
//! paused time; and other processes like it.

use std::fmt::Debug;
use std::time::Duration;

use campanile_core::{
    BoxError, Command, Coordinates, Entry, Grant, IdempotencyKey, KeyExtractor, LockHandle,
    Operation, Outcome, Owner, Record, Request, Retention, State, StoreKey, key,
};
use campanile_idempotency::{
    AttemptFailed, Exhausted, IdempotencyConfig, IdempotencyError, IdempotencyLayer, LockKeeper,
    MemoryStore, Store,
};
use campanile_test::TestClock;
use campanile_test::faults::FaultyStore;
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock::{self, Mock};

pub(crate) type TestLayer = IdempotencyLayer<key::Key<key::Header>>;

/// A mock of the handler. The test responds to its requests.
pub(crate) type MockHandler = Mock<Request<()>, &'static str>;
pub(crate) type MockHandle = mock::Handle<Request<()>, &'static str>;

/// The result of a call.
pub(crate) type CallResult<T = &'static str> = Result<Outcome<T>, BoxError>;

/// The layer's default TTL.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Longer than anything in these tests takes.
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

pub(crate) struct Harness {
    pub(crate) clock: TestClock,
    pub(crate) memory: MemoryStore,
    pub(crate) store: FaultyStore<MemoryStore>,
    pub(crate) keeper: LockKeeper,
    task: JoinHandle<()>,
    crashed: bool,
}

impl Harness {
    pub(crate) fn new() -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        Self::process(clock, memory)
    }

    /// Another process on the same store, with its own faults.
    pub(crate) fn other_process(&self) -> Self {
        Self::process(self.clock.clone(), self.memory.clone())
    }

    fn process(clock: TestClock, memory: MemoryStore) -> Self {
        let store = FaultyStore::new(memory.clone());
        let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
        Self { clock, memory, store, keeper, task: tokio::spawn(task), crashed: false }
    }

    pub(crate) fn layer(&self) -> TestLayer {
        self.layer_with(|config| config)
    }

    pub(crate) fn layer_with(
        &self,
        settings: impl FnOnce(IdempotencyConfig) -> IdempotencyConfig,
    ) -> TestLayer {
        layer_of(&self.keeper, settings(IdempotencyConfig::new("payments")))
    }

    /// Wraps a mock of the handler in the layer's service.
    pub(crate) fn mock_service(
        &self,
        layer: TestLayer,
    ) -> (impl TestService<&'static str> + use<>, MockHandle) {
        let (handler, handle): (MockHandler, MockHandle) = mock::pair();
        (layer.layer(handler), handle)
    }

    pub(crate) fn entry(&self, id: &str) -> Option<Entry> {
        self.memory.entry(&store_key(id))
    }

    /// Grants the key to another owner, as after a failover that lost the current grant.
    pub(crate) async fn take_over(&self, id: &str) {
        let entry = self.entry(id).unwrap();
        let (token, owner) = (entry.token(), entry.owner().unwrap());
        let grant = Grant { token, owner };
        let acquire = Operation::Acquire {
            owner: Owner::new(1).unwrap(),
            ttl: HOUR,
            max_attempts: 0,
            fingerprint: None,
            floor: token,
            details: None,
        };
        for operation in [Operation::Release { grant, ran: false }, acquire] {
            let command =
                Command { key: store_key(id), operation, retention: Retention::default() };
            self.memory.apply(command).await.unwrap();
        }
    }

    pub(crate) fn state(&self, id: &str) -> Option<State> {
        self.entry(id).map(|entry| entry.state())
    }

    /// Crashes the process: the keeper loses its state and sends nothing more to the store.
    pub(crate) async fn crash(&mut self) {
        self.crashed = true;
        self.task.abort();
        let ended = (&mut self.task).await;
        assert!(ended.unwrap_err().is_cancelled(), "the keeper panicked");
    }

    /// Asserts that no lock is held and nothing remains to be sent to the store.
    pub(crate) async fn assert_settled(&self) {
        let report = self.keeper.shutdown(HOUR).await;
        assert!(report.settled, "the keeper has unsettled locks");
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // The keeper ends with its last handle, which is dropped only after this.
        let ended = self.task.is_finished() && !self.crashed;
        assert!(!ended || std::thread::panicking(), "the keeper panicked");
    }
}

/// A service of the layer, as the tests call it.
pub(crate) trait TestService<T>: Clone + Send + 'static {
    /// Calls the service in a new task.
    fn start(&self, request: Request<()>) -> JoinHandle<CallResult<T>>;

    /// Calls the service for a request with this key and waits for the result.
    async fn run(&self, id: &str) -> CallResult<T> {
        self.start(request(id)).await.unwrap()
    }
}

impl<S, T> TestService<T> for S
where
    S: Service<Request<()>, Response = Outcome<T>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    T: Send + 'static,
{
    fn start(&self, request: Request<()>) -> JoinHandle<CallResult<T>> {
        let service = self.clone();
        tokio::spawn(service.oneshot(request))
    }
}

pub(crate) fn request(id: &str) -> Request<()> {
    let record = Record::builder("payments", 0, 0).header("id", id.to_owned());
    Request::new(record.build(), ())
}

/// A layer that compares the payloads of a key.
pub(crate) fn fingerprint_layer(
    harness: &Harness,
) -> IdempotencyLayer<impl KeyExtractor<Request<()>> + Send + Sync + use<>> {
    let by_payload = key::header("id").fingerprint_by(|request: &Request<()>, parts| {
        parts.update(request.record().payload().unwrap());
    });
    IdempotencyLayer::new(&harness.keeper, "payments", by_payload).unwrap()
}

/// A request with this key and payload.
pub(crate) fn request_with_payload(id: &str, cents: &'static str) -> Request<()> {
    let record = Record::builder("payments", 0, 0).header("id", id.to_owned());
    Request::new(record.payload(cents).build(), ())
}

pub(crate) fn store_key(id: &str) -> StoreKey {
    let key = IdempotencyKey::new(id.to_owned()).unwrap();
    StoreKey::new("payments".try_into().unwrap(), &key)
}

/// The position of a record.
pub(crate) fn coordinates(offset: i64) -> Coordinates {
    Coordinates { topic: "payments".into(), partition: 0, offset }
}

/// A layer over this keeper, with keys from the header `id`.
pub(crate) fn layer_of(keeper: &LockKeeper, config: IdempotencyConfig) -> TestLayer {
    IdempotencyLayer::new(keeper, config, key::header("id")).unwrap()
}

/// The layer's error in the result of a call.
pub(crate) fn layer_error<T: Debug>(result: &CallResult<T>) -> &IdempotencyError {
    let error = result.as_ref().unwrap_err();
    IdempotencyError::find(&**error).unwrap()
}

/// A service with a handler that always fails with this error.
pub(crate) fn failing_service<F>(layer: &TestLayer, fail: F) -> impl TestService<()> + use<F>
where
    F: Fn() -> BoxError + Clone + Send + 'static,
{
    layer.layer(service_fn(move |_: Request<()>| {
        let error = fail();
        async move { Err::<(), BoxError>(error) }
    }))
}

pub(crate) fn failed<T: Debug>(result: &CallResult<T>) -> &AttemptFailed {
    match layer_error(result) {
        IdempotencyError::AttemptFailed(failed) => failed,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn exhausted<T: Debug>(result: &CallResult<T>) -> &Exhausted {
    match layer_error(result) {
        IdempotencyError::Exhausted(exhausted) => exhausted,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn lock(request: &Request<()>) -> LockHandle {
    request.lock().unwrap().clone()
}

/// Runs all tasks until they are idle.
pub(crate) async fn run_until_idle() {
    // Paused time advances only when all tasks are idle.
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Checks whether the call is still pending once all tasks are idle.
pub(crate) async fn is_pending<T>(call: &JoinHandle<CallResult<T>>) -> bool {
    run_until_idle().await;
    !call.is_finished()
}
