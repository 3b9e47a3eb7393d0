//! COMPLETED keys that are cached in the process.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{
    Answer, BoxError, Command, FencingToken, Grant, Operation, Outcome, Owner, Reply, Request,
    Retention, key,
};
use campanile_idempotency::{
    BoxStore, Cached, IdempotencyConfig, IdempotencyError, IdempotencyLayer, LockKeeper,
    MemoryStore, Store, StoreError, reply,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::harness::{CallResult, TestLayer, TestService, layer_error, layer_of, store_key};

const MEGABYTE: usize = 1024 * 1024;

struct Harness {
    clock: TestClock,
    memory: MemoryStore,
    /// The store behind the cache.
    store: FaultyStore<MemoryStore>,
    cache: Cached<FaultyStore<MemoryStore>>,
    keeper: LockKeeper,
}

impl Harness {
    fn new(bytes: usize) -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = FaultyStore::new(memory.clone());
        let cache = Cached::with_clock(store.clone(), bytes, clock.keeper_clock());
        let (keeper, task) = LockKeeper::pair(cache.clone(), clock.keeper_clock());
        tokio::spawn(task);
        Self { clock, memory, store, cache, keeper }
    }

    fn layer(&self) -> TestLayer {
        self.layer_with(|config| config)
    }

    fn layer_with(
        &self,
        settings: impl FnOnce(IdempotencyConfig) -> IdempotencyConfig,
    ) -> TestLayer {
        layer_of(&self.keeper, settings(IdempotencyConfig::new("payments")))
    }

    fn service(&self) -> impl TestService<Bytes> + use<> {
        self.layer().with_reply(reply::bytes()).layer(service_fn(receipt))
    }

    fn operations(&self) -> Vec<&'static str> {
        self.store.commands().iter().map(|command| command.operation.name()).collect()
    }
}

/// An acquire that does not come from a layer.
fn acquire(id: &str) -> Command {
    let operation = Operation::Acquire {
        owner: Owner::new(7).unwrap(),
        ttl: Duration::from_secs(30),
        max_attempts: 0,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    Command { key: store_key(id), operation, retention: Retention::default() }
}

async fn receipt(_: Request<()>) -> Result<Bytes, BoxError> {
    Ok(Bytes::from_static(b"receipt"))
}

fn assert_duplicate(result: CallResult<Bytes>, harness: &Harness) {
    let Outcome::Duplicate(duplicate) = result.unwrap() else {
        panic!("expected a duplicate");
    };
    let entry = harness.memory.entry(&store_key("p-1")).unwrap();
    assert_eq!(duplicate.reply.as_deref(), Some(&b"receipt"[..]));
    assert_eq!(duplicate.completed_at, entry.at());
    assert_eq!(duplicate.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_answered_from_cache_like_from_store() {
    let harness = Harness::new(MEGABYTE);
    let service = harness.service();
    service.run("p-1").await.unwrap();
    for _ in 0..3 {
        sleep(Duration::from_secs(10)).await;
        assert_duplicate(service.run("p-1").await, &harness);
    }
    assert_eq!(harness.operations(), ["acquire", "complete"]);
    service.run("p-2").await.unwrap();
    assert_eq!((harness.cache.hits(), harness.cache.misses()), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn completion_of_other_process_is_cached_from_first_duplicate() {
    let harness = Harness::new(MEGABYTE);
    let (keeper, task) = LockKeeper::pair(harness.memory.clone(), harness.clock.keeper_clock());
    tokio::spawn(task);
    let other_process = layer_of(&keeper, IdempotencyConfig::new("payments"));
    let other_process = other_process.with_reply(reply::bytes()).layer(service_fn(receipt));
    other_process.run("p-1").await.unwrap();
    let service = harness.service();
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        assert_duplicate(service.run("p-1").await, &harness);
    }
    assert_eq!(harness.operations(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn repeated_completion_is_cached_only_from_duplicate_reply() {
    let harness = Harness::new(MEGABYTE);
    let service = harness.service();
    harness.store.inject_next_of("complete", Fault::LoseReply);
    service.run("p-1").await.unwrap();
    for _ in 0..2 {
        assert_duplicate(service.run("p-1").await, &harness);
    }
    assert_eq!(harness.operations(), ["acquire", "complete", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn completion_differing_from_its_grant_is_not_cached() {
    let harness = Harness::new(MEGABYTE);
    let granted = harness.cache.apply(acquire("p-1")).await.unwrap().reply;
    let Reply::Acquired { token, attempt, .. } = granted else {
        panic!("{granted:?}");
    };
    let grant = Grant { token, owner: Owner::new(7).unwrap() };
    for attempt in [attempt + 1, attempt] {
        let operation =
            Operation::Complete { grant, attempt, fingerprint: None, reply: None, details: None };
        let complete = Command { operation, ..acquire("p-1") };
        assert_eq!(harness.cache.apply(complete).await.unwrap().reply, Reply::Completed);
        sleep(Duration::from_secs(1)).await;
    }
    let completed_at = harness.memory.entry(&store_key("p-1")).unwrap().at();
    let duplicate = Reply::Duplicate { reply: None, attempt, completed_at, details: None };
    assert_eq!(harness.cache.apply(acquire("p-1")).await.unwrap().reply, duplicate);
}

#[tokio::test(start_paused = true)]
async fn key_is_cached_for_its_retention_and_at_most_a_minute() {
    for (retention, cache_seconds) in [(10, 10), (3600, 60)] {
        let harness = Harness::new(MEGABYTE);
        let layer =
            harness.layer_with(|config| config.with_retention(Duration::from_secs(retention)));
        let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
        service.run("p-1").await.unwrap();
        sleep(Duration::from_secs(cache_seconds) - Duration::from_millis(1)).await;
        assert!(service.run("p-1").await.unwrap().is_duplicate());
        assert_eq!(harness.operations(), ["acquire", "complete"]);
        sleep(Duration::from_millis(2)).await;
        let again = service.run("p-1").await.unwrap();
        assert_eq!(again.is_duplicate(), retention > cache_seconds);
        assert_eq!(harness.operations()[2], "acquire");
    }
}

#[tokio::test(start_paused = true)]
async fn cache_stays_within_its_byte_limit() {
    const BYTES: usize = 50_000;
    const REPLY: usize = 2_000;
    let harness = Harness::new(BYTES);
    let large = Bytes::from(vec![0; REPLY]);
    let layer = harness.layer().with_reply(reply::bytes());
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let large = large.clone();
        async move { Ok::<_, BoxError>(large) }
    }));
    for n in 0..500 {
        service.run(&format!("p-{n}")).await.unwrap();
    }
    // Keys that are no longer cached are read from the store and evict others.
    for n in (0..500).rev() {
        assert!(service.run(&format!("p-{n}")).await.unwrap().is_duplicate());
    }
    let hits = harness.cache.hits() as usize;
    assert!((1..=BYTES / REPLY).contains(&hits), "{hits} keys were cached");
}

#[tokio::test(start_paused = true)]
async fn other_payload_is_never_answered_from_cache() {
    let harness = Harness::new(MEGABYTE);
    let by_payload = key::header("id").fingerprint_by(|request: &Request<()>, parts| {
        parts.update(request.record().payload().unwrap());
    });
    let layer = IdempotencyLayer::new(&harness.keeper, "payments", by_payload).unwrap();
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    let pay = |cents| service.start(crate::harness::request_with_payload("p-1", cents));
    pay("100").await.unwrap().unwrap();
    assert!(pay("100").await.unwrap().unwrap().is_duplicate());
    let other = pay("999").await.unwrap();
    assert!(matches!(layer_error(&other), IdempotencyError::Mismatch { .. }), "{other:?}");
    // A layer that does not compare payloads gets the cached answer.
    assert!(harness.service().run("p-1").await.unwrap().is_duplicate());
    assert_eq!(harness.operations(), ["acquire", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn redrive_through_cache_evicts_key() {
    let harness = Harness::new(MEGABYTE);
    let service = harness.service();
    service.run("p-1").await.unwrap();
    let token = harness.memory.entry(&store_key("p-1")).unwrap().token();
    let reopened = harness.cache.redrive(store_key("p-1"), token, true).await;
    assert_eq!(reopened.unwrap(), Reply::Reopened);
    assert!(!service.run("p-1").await.unwrap().is_duplicate());
}

/// A store in which another record of the key arrives just before a redrive.
#[derive(Clone)]
struct Racing(MemoryStore, Arc<OnceLock<BoxStore>>);

impl Store for Racing {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        if let Operation::Redrive { .. } = command.operation {
            let other = self.1.get().unwrap().apply(acquire("p-1")).await?;
            assert!(matches!(other.reply, Reply::Duplicate { .. }));
        }
        self.0.apply(command).await
    }
}

#[tokio::test(start_paused = true)]
async fn completion_that_is_cached_during_a_redrive_is_evicted() {
    let clock = TestClock::new();
    let cell = Arc::new(OnceLock::new());
    let memory = MemoryStore::with_clock(clock.store_clock());
    let store = Racing(memory.clone(), cell.clone());
    let cache = Cached::with_clock(store, MEGABYTE, clock.keeper_clock());
    assert!(cell.set(cache.clone().boxed()).is_ok());
    let (keeper, task) = LockKeeper::pair(cache.clone(), clock.keeper_clock());
    tokio::spawn(task);
    let service = layer_of(&keeper, "payments".into()).layer(service_fn(receipt));
    service.run("p-1").await.unwrap();
    let token = memory.entry(&store_key("p-1")).unwrap().token();
    let reopened = cache.redrive(store_key("p-1"), token, true).await;
    assert_eq!(reopened.unwrap(), Reply::Reopened);
    assert!(!service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn batch_forwards_only_uncached_keys_and_keeps_order() {
    let harness = Harness::new(MEGABYTE);
    let service = harness.service();
    for id in ["p-1", "p-3"] {
        service.run(id).await.unwrap();
    }
    harness.store.forget_calls();
    let store = &harness.cache;
    let batch = ["p-1", "p-2", "p-3", "p-4"].map(acquire).to_vec();
    let answers = store.apply_batch(batch.clone()).await;
    let duplicates: Vec<bool> = answers
        .iter()
        .map(|answer| matches!(answer.as_ref().unwrap().reply, Reply::Duplicate { .. }))
        .collect();
    assert_eq!(duplicates, [true, false, true, false]);
    assert_eq!(harness.operations(), ["acquire", "acquire"]);

    // If the number of answers is wrong, none of them is used.
    harness.store.inject_next_of("acquire", Fault::FewerAnswers);
    assert!(store.apply_batch(batch).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cached_completion_without_fingerprint_does_not_answer_one_with() {
    let harness = Harness::new(MEGABYTE);
    harness.service().run("p-1").await.unwrap();
    let comparing = key::header("id").fingerprint_by(|_: &Request<()>, parts| parts.update("100"));
    let layer = IdempotencyLayer::new(&harness.keeper, "payments", comparing).unwrap();
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    harness.store.forget_calls();
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert_eq!(
        harness.operations(),
        ["acquire"],
        "only the store knows the payload of the completion"
    );
}

#[tokio::test(start_paused = true)]
async fn key_cached_late_expires_with_its_entry() {
    let harness = Harness::new(MEGABYTE);
    let kept = Duration::from_secs(30);
    let layer = harness.layer_with(|config| config.with_retention(kept)).with_reply(reply::bytes());
    let other_process = LockKeeper::pair(harness.memory.clone(), harness.clock.keeper_clock());
    tokio::spawn(other_process.1);
    let config = IdempotencyConfig::new("payments").with_retention(kept);
    let other = layer_of(&other_process.0, config);
    let other = other.with_reply(reply::bytes());
    other.layer(service_fn(receipt)).run("p-1").await.unwrap();
    sleep(Duration::from_secs(29)).await;
    let service = layer.layer(service_fn(receipt));
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    sleep(Duration::from_secs(1)).await;
    assert!(!service.run("p-1").await.unwrap().is_duplicate(), "its retention has expired");
}

#[tokio::test(start_paused = true)]
async fn late_answer_is_not_cached_beyond_its_entry() {
    let harness = Harness::new(MEGABYTE);
    let layer = harness.layer_with(|config| config.with_retention(Duration::from_secs(2)));
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    harness.store.inject_next_of("complete", Fault::Slow(Duration::from_secs(4)));
    service.run("p-1").await.unwrap();
    assert!(!service.run("p-1").await.unwrap().is_duplicate(), "its retention has expired");
}

#[tokio::test(start_paused = true)]
async fn cached_answer_has_current_store_time() {
    let harness = Harness::new(MEGABYTE);
    harness.service().run("p-1").await.unwrap();
    sleep(Duration::from_secs(10)).await;
    let answer = harness.cache.apply(acquire("p-1")).await.unwrap();
    assert_eq!(harness.cache.hits(), 1);
    assert_eq!(answer.now, harness.clock.now());
}
