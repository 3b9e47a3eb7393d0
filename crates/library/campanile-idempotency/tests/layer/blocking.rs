//! The keeper's background thread, in real time.

use std::future::{Future, Ready, pending, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use campanile_core::{Answer, BoxError, Command, Outcome, Request, State};
use campanile_idempotency::{IdempotencyConfig, LockKeeper, MemoryStore, Store, StoreError};
use campanile_test::eventually;
use campanile_test::faults::{Fault, FaultyStore};
use futures_util::FutureExt;
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::harness::{TestLayer, TestService, failed, layer_error, layer_of, request, store_key};

/// The shortest allowed TTL.
const TTL: Duration = Duration::from_millis(500);

/// Short, but with time for a late renewal.
const RENEWED_TTL: Duration = Duration::from_secs(6);

fn config() -> IdempotencyConfig {
    IdempotencyConfig::new("payments").with_lock_ttl(TTL)
}

fn layer(keeper: &LockKeeper) -> TestLayer {
    layer_of(keeper, config())
}

/// The runtime has only this thread, and the handler blocks it for longer than the TTL of its lock.
#[tokio::test]
async fn handler_blocking_its_runtime_keeps_its_lock() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let seen = memory.clone();
    let layer = layer_of(&keeper, config().with_lock_ttl(RENEWED_TTL));
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let lock = request.lock().unwrap().clone();
        for _ in 0..5 {
            thread::sleep(RENEWED_TTL / 4);
            assert!(lock.check().is_ok());
        }
        assert!(layer_error(&run_in_other_process(seen.clone())).is_contention());
        async move { Ok::<_, BoxError>(lock.attempt()) }
    }));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(1));
    assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), State::Completed);
}

/// Runs the same request as another process would: with its own keeper and runtime.
fn run_in_other_process(memory: MemoryStore) -> Result<Outcome<()>, BoxError> {
    let other = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let keeper = LockKeeper::new(memory).unwrap();
        let layer = layer_of(&keeper, config().with_lock_ttl(RENEWED_TTL));
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
        runtime.block_on(service.oneshot(request("p-1")))
    });
    other.join().unwrap()
}

/// Checks during its drop whether the lock is released.
struct SlowDrop {
    memory: MemoryStore,
    /// Whether the lock was released during the drop.
    released_early: Arc<AtomicBool>,
}

impl SlowDrop {
    fn new(memory: &MemoryStore) -> (Self, Arc<AtomicBool>) {
        let released_early = Arc::new(AtomicBool::new(false));
        let slow_drop = Self { memory: memory.clone(), released_early: released_early.clone() };
        (slow_drop, released_early)
    }
}

impl Drop for SlowDrop {
    fn drop(&mut self) {
        let released_early = is_released(&self.memory, Duration::from_millis(100));
        self.released_early.store(released_early, Ordering::Relaxed);
    }
}

fn is_released(memory: &MemoryStore, within: Duration) -> bool {
    let state = || memory.entry(&store_key("p-1")).unwrap().state();
    let released = || (state() != State::Processing).then_some(());
    eventually(within, released).is_some()
}

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn dropped_handler_is_freed_before_its_lock_is_released() {
    static BEGAN: Notify = Notify::const_new();
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let (slow_drop, released_early) = SlowDrop::new(&memory);
    let slow_drop = Arc::new(slow_drop);
    let mut service = layer(&keeper).layer(service_fn(move |_: Request<()>| {
        let slow_drop = slow_drop.clone();
        async move {
            let _slow_drop = slow_drop;
            BEGAN.notify_one();
            pending::<Result<(), BoxError>>().await
        }
    }));
    let call = service.ready().await.unwrap().call(request("p-1"));
    drop(service); // only the call now holds what the service held
    {
        let mut call = pin!(call);
        tokio::select! {
            () = BEGAN.notified() => {}
            ended = call.as_mut() => panic!("the handler waits forever: {ended:?}"),
        }
    }
    assert!(is_released(&memory, TIMEOUT));
    assert!(!released_early.load(Ordering::Relaxed));
}

#[tokio::test]
async fn finished_handler_is_freed_before_its_lock_is_released() {
    for answer in [Ok(()), Err("declined")] {
        let memory = MemoryStore::new();
        let keeper = LockKeeper::new(memory.clone()).unwrap();
        let (slow_drop, released_early) = SlowDrop::new(&memory);
        let slow_drop = Arc::new(slow_drop);
        let mut service = layer(&keeper).layer(service_fn(move |_: Request<()>| {
            ReadyFuture(slow_drop.clone(), ready(answer.map_err(BoxError::from)))
        }));
        let call = service.ready().await.unwrap().call(request("p-1"));
        drop(service);
        assert_eq!(call.await.is_ok(), answer.is_ok());
        assert!(is_released(&memory, TIMEOUT));
        assert!(!released_early.load(Ordering::Relaxed));
    }
}

/// Holds its `SlowDrop` until it is dropped, and not only until it is ready.
struct ReadyFuture(
    #[expect(dead_code, reason = "held for its drop")] Arc<SlowDrop>,
    Ready<Result<(), BoxError>>,
);

impl Future for ReadyFuture {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.1.poll_unpin(cx)
    }
}

/// A service that panics when called and is slow to drop.
#[derive(Clone)]
struct Panicking(#[expect(dead_code, reason = "held for its drop")] Arc<SlowDrop>);

impl Service<Request<()>> for Panicking {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        panic!("in the call")
    }
}

#[tokio::test]
async fn panicked_service_is_freed_before_its_lock_is_released() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let (slow_drop, released_early) = SlowDrop::new(&memory);
    let mut service = layer(&keeper).layer(Panicking(Arc::new(slow_drop)));
    let call = service.ready().await.unwrap().call(request("p-1"));
    drop(service);
    assert!(call.await.unwrap_err().to_string().contains("failed"));
    assert!(is_released(&memory, TIMEOUT));
    assert!(!released_early.load(Ordering::Relaxed));
}

#[tokio::test]
async fn keeper_thread_ends_with_its_last_handle() {
    #[derive(Clone)]
    struct Counted(MemoryStore, #[expect(dead_code, reason = "counted by the test")] Arc<()>);
    impl Store for Counted {
        async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
            self.0.apply(command).await
        }
    }

    let alive = Arc::new(());
    let keeper = LockKeeper::new(Counted(MemoryStore::new(), alive.clone())).unwrap();
    let service = layer(&keeper).layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    service.run("p-1").await.unwrap();
    drop(keeper);
    service.run("p-2").await.unwrap();
    assert_eq!(Arc::strong_count(&alive), 3, "of the test and the keeper's two store handles");
    drop(service);
    let is_dropped = || (Arc::strong_count(&alive) == 1).then_some(());
    assert!(eventually(TIMEOUT, is_dropped).is_some());
}

fn state(memory: &MemoryStore) -> Option<State> {
    memory.entry(&store_key("p-1")).map(|entry| entry.state())
}

/// The runtime has only this thread, which `eventually` blocks.
#[tokio::test]
async fn background_completes_settlement_of_blocked_runtime() {
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let service = layer(&keeper).layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    // The command is applied, but only a thread that is not blocked could read its reply.
    store.inject_next_of("complete", Fault::Slow(TTL / 20));
    let call = service.start(request("p-1"));
    while store.count("complete") == 0 {
        tokio::task::yield_now().await;
    }
    let repeated = || (store.count("complete") > 1).then_some(());
    assert!(eventually(TIMEOUT, repeated).is_some(), "repeated while this thread is blocked");
    assert_eq!(state(&memory), Some(State::Completed));
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed(()));
}

#[tokio::test]
async fn background_sends_unsent_commands_of_blocked_runtime() {
    static BEGAN: Notify = Notify::const_new();
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(FaultyStore::new(memory.clone())).unwrap();
    let service = layer(&keeper).layer(service_fn(async |_: Request<()>| {
        BEGAN.notify_one();
        pending::<Result<(), BoxError>>().await
    }));
    let mut call = Box::pin(service.oneshot(request("p-1")));
    tokio::select! {
        () = BEGAN.notified() => {}
        ended = call.as_mut() => panic!("the handler waits forever: {ended:?}"),
    }
    assert_eq!(state(&memory), Some(State::Processing));
    drop(call);
    assert!(is_released(&memory, TIMEOUT), "released while this thread is blocked");
}

#[tokio::test]
async fn lock_dropped_outside_of_runtime_is_settled() {
    for batches in [false, true] {
        let memory = MemoryStore::new();
        let keeper = match batches {
            true => LockKeeper::new(FaultyStore::new(memory.clone())).unwrap(),
            false => LockKeeper::new(memory.clone()).unwrap(),
        };
        let layer = layer_of(&keeper, config().with_max_attempts(1));
        let service =
            layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into())));
        let result = service.run("p-1").await;
        let lock = failed(&result).take_lock().unwrap();
        assert_eq!(state(&memory), Some(State::Processing));
        thread::spawn(move || drop(lock)).join().unwrap();
        assert!(is_released(&memory, TIMEOUT));
    }
}

#[test]
fn background_makes_call_of_runtime_that_was_shut_down() {
    for operation in ["acquire", "complete"] {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        let keeper = LockKeeper::new(store.clone()).unwrap();
        let layer = layer_of(&keeper, config().with_lock_ttl(Duration::from_secs(60)));
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
        store.inject_next_of(operation, Fault::HangReply);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(service.start(request("p-1")));
            while store.count(operation) == 0 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        let expected = match operation {
            // The caller is gone, so the lock is released.
            "acquire" => State::Retrying,
            _ => State::Completed,
        };
        let settled = || (state(&memory) == Some(expected)).then_some(());
        assert!(eventually(TIMEOUT, settled).is_some(), "{operation}");
        let repeated = || (store.count(operation) == 2).then_some(());
        assert!(
            eventually(TIMEOUT, repeated).is_some(),
            "{operation} is repeated long before its call times out"
        );
    }
}

/// Applies the first call but never answers it, and cannot be reached by the second.
#[derive(Clone)]
struct UnreachableStore {
    memory: MemoryStore,
    calls: Arc<AtomicUsize>,
}

impl Store for UnreachableStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call == 1 {
            return Err(StoreError::not_sent("unreachable"));
        }
        let answer = self.memory.apply(command).await;
        match call {
            0 => pending().await,
            _ => answer,
        }
    }
}

#[test]
fn repeated_acquire_that_is_not_sent_is_cancelled() {
    let memory = MemoryStore::new();
    let store = UnreachableStore { memory: memory.clone(), calls: Arc::default() };
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let layer = layer_of(&keeper, config().with_lock_ttl(Duration::from_secs(3600)));
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        drop(service.start(request("p-1")));
        while store.calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(state(&memory), Some(State::Processing));
    drop(runtime);
    assert!(is_released(&memory, TIMEOUT));
}
