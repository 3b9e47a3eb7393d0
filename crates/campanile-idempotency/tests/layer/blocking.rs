//! The keeper's background on a thread of its own, in real time.

use std::future::{Future, Ready, pending, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use campanile_core::{Answer, BoxError, Command, Outcome, Request, State, key};
use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore, Store, StoreError};
use campanile_test::eventually;
use campanile_test::faults::{Fault, FaultyStore};
use futures_util::FutureExt;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::world::{Guarding, TestLayer, failed, refusal, request, store_key};

/// The shortest there is.
const TTL: Duration = Duration::from_millis(500);

fn layer(keeper: &LockKeeper) -> TestLayer {
    let layer = IdempotencyLayer::new(keeper, "payments", key::header("id")).unwrap();
    layer.with_lock_ttl(TTL).unwrap()
}

/// The runtime has this one thread, and the handler blocks it for twice the time of its lock.
#[tokio::test]
async fn a_handler_that_blocks_its_runtime_keeps_its_lock() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let seen = memory.clone();
    let service = layer(&keeper).layer(service_fn(move |request: Request<()>| {
        let lock = request.lock().unwrap().clone();
        for _ in 0..4 {
            thread::sleep(TTL / 2);
            assert!(lock.check().is_ok());
        }
        assert!(refusal(&elsewhere(seen.clone())).is_contention());
        async move { Ok::<_, BoxError>(lock.attempt()) }
    }));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(1));
    assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), State::Completed);
}

/// The same request in another process.
fn elsewhere(memory: MemoryStore) -> Result<Outcome<()>, BoxError> {
    let other = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let keeper = LockKeeper::new(memory).unwrap();
        let service =
            layer(&keeper).layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
        runtime.block_on(service.oneshot(request("p-1")))
    });
    other.join().unwrap()
}

/// Looks, while it is dropped, whether the lock has been let go meanwhile.
struct Slow {
    memory: MemoryStore,
    /// It had.
    early: Arc<AtomicBool>,
}

impl Slow {
    fn new(memory: &MemoryStore) -> (Self, Arc<AtomicBool>) {
        let early = Arc::new(AtomicBool::new(false));
        let slow = Self { memory: memory.clone(), early: early.clone() };
        (slow, early)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let early = is_let_go(&self.memory, Duration::from_millis(100));
        self.early.store(early, Ordering::Relaxed);
    }
}

fn is_let_go(memory: &MemoryStore, within: Duration) -> bool {
    let state = || memory.entry(&store_key("p-1")).unwrap().state();
    let let_go = || (state() != State::Processing).then_some(());
    eventually(within, let_go).is_some()
}

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_handler_that_is_dropped_dies_before_its_lock_is_let_go() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let (slow, early) = Slow::new(&memory);
    let slow = Arc::new(slow);
    let mut service = layer(&keeper).layer(service_fn(move |_: Request<()>| {
        let slow = slow.clone();
        async move {
            let _slow = slow;
            pending::<Result<(), BoxError>>().await
        }
    }));
    let call = service.ready().await.unwrap().call(request("p-1"));
    drop(service); // what the service has is now in the call alone
    {
        let mut call = pin!(call);
        let brief = Duration::from_millis(100);
        tokio::time::timeout(brief, call.as_mut()).await.unwrap_err();
    }
    assert!(is_let_go(&memory, SOON));
    assert!(!early.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_handler_that_has_ended_dies_before_its_lock_is_let_go() {
    for answer in [Ok(()), Err("declined")] {
        let memory = MemoryStore::new();
        let keeper = LockKeeper::new(memory.clone()).unwrap();
        let (slow, early) = Slow::new(&memory);
        let slow = Arc::new(slow);
        let mut service = layer(&keeper).layer(service_fn(move |_: Request<()>| {
            Ended(slow.clone(), ready(answer.map_err(BoxError::from)))
        }));
        let call = service.ready().await.unwrap().call(request("p-1"));
        drop(service);
        assert_eq!(call.await.is_ok(), answer.is_ok());
        assert!(is_let_go(&memory, SOON));
        assert!(!early.load(Ordering::Relaxed));
    }
}

/// What it holds lives until it is dropped, not only until it is ready.
struct Ended(#[expect(dead_code, reason = "for its drop")] Arc<Slow>, Ready<Result<(), BoxError>>);

impl Future for Ended {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.1.poll_unpin(cx)
    }
}

/// A service that panics when it is called, and takes its time to die.
#[derive(Clone)]
struct Panicking(#[expect(dead_code, reason = "for its drop")] Arc<Slow>);

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
async fn a_service_that_panics_dies_before_its_lock_is_let_go() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(memory.clone()).unwrap();
    let (slow, early) = Slow::new(&memory);
    let mut service = layer(&keeper).layer(Panicking(Arc::new(slow)));
    let call = service.ready().await.unwrap().call(request("p-1"));
    drop(service);
    assert!(call.await.unwrap_err().to_string().contains("failed"));
    assert!(is_let_go(&memory, SOON));
    assert!(!early.load(Ordering::Relaxed));
}

#[tokio::test]
async fn the_keepers_thread_ends_with_its_last_handle() {
    #[derive(Clone)]
    struct Counted(MemoryStore, #[expect(dead_code, reason = "it is counted")] Arc<()>);
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
    assert_eq!(Arc::strong_count(&alive), 3, "the keeper's two handles of the store are there");
    drop(service);
    let gone = || (Arc::strong_count(&alive) == 1).then_some(());
    assert!(eventually(SOON, gone).is_some());
}

fn state(memory: &MemoryStore) -> Option<State> {
    memory.entry(&store_key("p-1")).map(|entry| entry.state())
}

/// The runtime has this one thread.
#[tokio::test]
async fn settlement_of_a_blocked_runtime_is_completed_by_the_background() {
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let service = layer(&keeper).layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    // It is applied, and its reply could be read later, by a thread that were not blocked.
    store.next_of("complete", Fault::Slow(TTL / 20));
    let call = service.start(request("p-1"));
    while store.count("complete") == 0 {
        tokio::task::yield_now().await;
    }
    let repeated = || (store.count("complete") > 1).then_some(());
    assert!(eventually(SOON, repeated).is_some(), "the thread was blocked until then");
    assert_eq!(state(&memory), Some(State::Completed));
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed(()));
}

#[tokio::test]
async fn commands_that_a_blocked_runtime_has_not_sent_are_sent_by_the_background() {
    let memory = MemoryStore::new();
    let keeper = LockKeeper::new(FaultyStore::new(memory.clone())).unwrap();
    let service = layer(&keeper)
        .layer(service_fn(async |_: Request<()>| pending::<Result<(), BoxError>>().await));
    let mut call = Box::pin(service.oneshot(request("p-1")));
    tokio::time::timeout(TTL / 5, call.as_mut()).await.unwrap_err();
    assert_eq!(state(&memory), Some(State::Processing));
    drop(call);
    assert!(is_let_go(&memory, SOON), "although this thread is blocked");
}

#[tokio::test]
async fn lock_dropped_outside_of_a_runtime_is_settled() {
    for batches in [false, true] {
        let memory = MemoryStore::new();
        let keeper = match batches {
            true => LockKeeper::new(FaultyStore::new(memory.clone())).unwrap(),
            false => LockKeeper::new(memory.clone()).unwrap(),
        };
        let layer = layer(&keeper).with_max_attempts(1).unwrap();
        let service =
            layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into())));
        let called = service.run("p-1").await;
        let lock = failed(&called).take_lock().unwrap();
        assert_eq!(state(&memory), Some(State::Processing));
        thread::spawn(move || drop(lock)).join().unwrap();
        assert!(is_let_go(&memory, SOON));
    }
}

#[test]
fn call_whose_runtime_is_shut_down_is_made_by_the_background() {
    for operation in ["acquire", "complete"] {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        let keeper = LockKeeper::new(store.clone()).unwrap();
        let layer = layer(&keeper).with_lock_ttl(Duration::from_secs(60)).unwrap();
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
        store.next_of(operation, Fault::HangReply);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(service.start(request("p-1")));
            while store.count(operation) == 0 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        let expected = match operation {
            // Its caller is gone, so the lock is handed back.
            "acquire" => State::Retrying,
            _ => State::Completed,
        };
        let settled = || (state(&memory) == Some(expected)).then_some(());
        assert!(eventually(SOON, settled).is_some(), "{operation}");
        let repeated = || (store.count(operation) == 2).then_some(());
        assert!(eventually(SOON, repeated).is_some(), "{operation}, long before its call's limit");
    }
}
