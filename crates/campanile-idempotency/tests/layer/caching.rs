//! COMPLETED keys that are remembered in the process.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{
    BoxError, Command, FencingToken, Grant, Operation, Outcome, Owner, Reply, Request, Retention,
    key,
};
use campanile_idempotency::{
    Cached, IdempotencyError, IdempotencyLayer, LockKeeper, MemoryStore, Store, reply,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{Called, Guarding, TestLayer, refusal, store_key};

const MEGABYTE: usize = 1024 * 1024;

struct World {
    clock: TestClock,
    memory: MemoryStore,
    /// Behind the cache.
    store: FaultyStore<MemoryStore>,
    cache: Cached<FaultyStore<MemoryStore>>,
    keeper: LockKeeper,
}

impl World {
    fn new(bytes: usize) -> Self {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = FaultyStore::new(memory.clone());
        let cache = Cached::with_clock(store.clone(), bytes, clock.clock());
        let (keeper, task) = LockKeeper::unspawned(cache.clone(), clock.clock());
        tokio::spawn(task);
        Self { clock, memory, store, cache, keeper }
    }

    fn layer(&self) -> TestLayer {
        IdempotencyLayer::new(&self.keeper, "payments", key::header("id")).unwrap()
    }

    fn service(&self) -> impl Guarding<Bytes> + use<> {
        self.layer().with_reply(reply::bytes()).layer(service_fn(receipt))
    }

    fn words(&self) -> Vec<&'static str> {
        self.store.commands().iter().map(|command| command.operation.name()).collect()
    }
}

/// As somebody who goes by no layer.
fn acquire(id: &str) -> Command {
    let operation = Operation::Acquire {
        owner: Owner::new(7).unwrap(),
        ttl: Duration::from_secs(30),
        max_attempts: 0,
        fingerprint: None,
        floor: FencingToken::ZERO,
    };
    Command { key: store_key(id), operation, retention: Retention::default() }
}

async fn receipt(_: Request<()>) -> Result<Bytes, BoxError> {
    Ok(Bytes::from_static(b"receipt"))
}

fn assert_duplicate(called: Called<Bytes>, world: &World) {
    let Outcome::Duplicate(duplicate) = called.unwrap() else {
        panic!("no duplicate");
    };
    let entry = world.memory.entry(&store_key("p-1")).unwrap();
    assert_eq!(duplicate.reply.as_deref(), Some(&b"receipt"[..]));
    assert_eq!(duplicate.completed_at, entry.at());
    assert_eq!(duplicate.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_without_the_store_as_the_store_would() {
    let world = World::new(MEGABYTE);
    let service = world.service();
    service.run("p-1").await.unwrap();
    for _ in 0..3 {
        sleep(Duration::from_secs(10)).await;
        assert_duplicate(service.run("p-1").await, &world);
    }
    assert_eq!(world.words(), ["acquire", "complete"]);
    assert_eq!((world.cache.hits(), world.cache.misses()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_has_completed_is_learnt_from_the_first_duplicate() {
    let world = World::new(MEGABYTE);
    let (keeper, task) = LockKeeper::unspawned(world.memory.clone(), world.clock.clock());
    tokio::spawn(task);
    let elsewhere = IdempotencyLayer::new(&keeper, "payments", key::header("id")).unwrap();
    let elsewhere = elsewhere.with_reply(reply::bytes()).layer(service_fn(receipt));
    elsewhere.run("p-1").await.unwrap();
    let service = world.service();
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        assert_duplicate(service.run("p-1").await, &world);
    }
    assert_eq!(world.words(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_was_repeated_is_learnt_only_when_the_store_tells_its_time() {
    let world = World::new(MEGABYTE);
    let service = world.service();
    world.store.next_of("complete", Fault::LoseReply);
    service.run("p-1").await.unwrap();
    for _ in 0..2 {
        assert_duplicate(service.run("p-1").await, &world);
    }
    assert_eq!(world.words(), ["acquire", "complete", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_says_something_else_than_its_grant_is_not_believed_when_repeated() {
    let world = World::new(MEGABYTE);
    let granted = world.cache.apply(acquire("p-1")).await.unwrap().reply;
    let Reply::Acquired { token, attempt } = granted else {
        panic!("{granted:?}");
    };
    let grant = Grant { token, owner: Owner::new(7).unwrap() };
    for attempt in [attempt + 1, attempt] {
        let operation = Operation::Complete { grant, attempt, fingerprint: None, reply: None };
        let complete = Command { operation, ..acquire("p-1") };
        assert_eq!(world.cache.apply(complete).await.unwrap().reply, Reply::Completed);
        sleep(Duration::from_secs(1)).await;
    }
    let completed_at = world.memory.entry(&store_key("p-1")).unwrap().at();
    let duplicate = Reply::Duplicate { reply: None, attempt, completed_at };
    assert_eq!(world.cache.apply(acquire("p-1")).await.unwrap().reply, duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_remembered_no_longer_than_its_entry_is_kept_and_a_minute_at_most() {
    for (retention, remembered) in [(10, 10), (3600, 60)] {
        let world = World::new(MEGABYTE);
        let layer = world.layer().with_retention(Duration::from_secs(retention)).unwrap();
        let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
        service.run("p-1").await.unwrap();
        sleep(Duration::from_secs(remembered) - Duration::from_millis(1)).await;
        assert!(service.run("p-1").await.unwrap().is_duplicate());
        assert_eq!(world.words(), ["acquire", "complete"]);
        sleep(Duration::from_millis(2)).await;
        let again = service.run("p-1").await.unwrap();
        assert_eq!(again.is_duplicate(), retention > remembered);
        assert_eq!(world.words()[2], "acquire");
    }
}

#[tokio::test(start_paused = true)]
async fn it_stays_within_its_bytes_however_many_keys_there_are() {
    const BYTES: usize = 50_000;
    const REPLY: usize = 2_000;
    let world = World::new(BYTES);
    let large = Bytes::from(vec![0; REPLY]);
    let layer = world.layer().with_reply(reply::bytes());
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let large = large.clone();
        async move { Ok::<_, BoxError>(large) }
    }));
    for n in 0..500 {
        service.run(&format!("p-{n}")).await.unwrap();
    }
    // What it has forgotten is asked for, and takes the place of others.
    for n in (0..500).rev() {
        assert!(service.run(&format!("p-{n}")).await.unwrap().is_duplicate());
    }
    let hits = world.cache.hits() as usize;
    assert!((1..=BYTES / REPLY).contains(&hits), "{hits} keys were remembered");
}

#[tokio::test(start_paused = true)]
async fn another_payload_is_never_answered_from_memory() {
    let world = World::new(MEGABYTE);
    let by_payload = key::header("id").fingerprint_by(|request: &Request<()>, parts| {
        parts.update(request.record().payload().unwrap());
    });
    let layer = IdempotencyLayer::new(&world.keeper, "payments", by_payload).unwrap();
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    let pay = |cents| service.start(crate::world::paying("p-1", cents));
    pay("100").await.unwrap().unwrap();
    assert!(pay("100").await.unwrap().unwrap().is_duplicate());
    let other = pay("999").await.unwrap();
    assert!(matches!(refusal(&other), IdempotencyError::Mismatch { .. }), "{other:?}");
    // Who compares no payloads is answered.
    assert!(world.service().run("p-1").await.unwrap().is_duplicate());
    assert_eq!(world.words(), ["acquire", "complete", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_reopened_through_it_is_forgotten() {
    let world = World::new(MEGABYTE);
    let service = world.service();
    service.run("p-1").await.unwrap();
    let token = world.memory.entry(&store_key("p-1")).unwrap().token();
    let reopened = world.cache.redrive(store_key("p-1"), token, true).await;
    assert_eq!(reopened.unwrap(), Reply::Reopened);
    assert!(!service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn in_a_batch_only_what_is_not_known_is_asked_and_the_answers_keep_their_order() {
    let world = World::new(MEGABYTE);
    let service = world.service();
    for id in ["p-1", "p-3"] {
        service.run(id).await.unwrap();
    }
    world.store.forget_calls();
    let store = &world.cache;
    let batch = ["p-1", "p-2", "p-3", "p-4"].map(acquire).to_vec();
    let answers = store.apply_batch(batch.clone()).await;
    let duplicates: Vec<bool> = answers
        .iter()
        .map(|answer| matches!(answer.as_ref().unwrap().reply, Reply::Duplicate { .. }))
        .collect();
    assert_eq!(duplicates, [true, false, true, false]);
    assert_eq!(world.words(), ["acquire", "acquire"]);

    // Without one answer for each, none is believed.
    world.store.next_of("acquire", Fault::FewerAnswers);
    assert!(store.apply_batch(batch).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_completed_without_a_payload_to_compare_does_not_answer_one_with() {
    let world = World::new(MEGABYTE);
    world.service().run("p-1").await.unwrap();
    let comparing = key::header("id").fingerprint_by(|_: &Request<()>, parts| parts.update("100"));
    let layer = IdempotencyLayer::new(&world.keeper, "payments", comparing).unwrap();
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    world.store.forget_calls();
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    assert_eq!(world.words(), ["acquire"], "only the store knows what it was completed with");
}

#[tokio::test(start_paused = true)]
async fn what_is_learnt_late_is_remembered_for_what_is_left_of_its_entry() {
    let world = World::new(MEGABYTE);
    let kept = Duration::from_secs(30);
    let layer = world.layer().with_retention(kept).unwrap().with_reply(reply::bytes());
    let elsewhere = LockKeeper::unspawned(world.memory.clone(), world.clock.clock());
    tokio::spawn(elsewhere.1);
    let other = IdempotencyLayer::new(&elsewhere.0, "payments", key::header("id")).unwrap();
    let other = other.with_retention(kept).unwrap().with_reply(reply::bytes());
    other.layer(service_fn(receipt)).run("p-1").await.unwrap();
    sleep(Duration::from_secs(29)).await;
    let service = layer.layer(service_fn(receipt));
    assert!(service.run("p-1").await.unwrap().is_duplicate());
    sleep(Duration::from_secs(1)).await;
    assert!(!service.run("p-1").await.unwrap().is_duplicate(), "its retention is over");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_late_is_not_remembered_beyond_its_entry() {
    let world = World::new(MEGABYTE);
    let layer = world.layer().with_retention(Duration::from_secs(2)).unwrap();
    let service = layer.with_reply(reply::bytes()).layer(service_fn(receipt));
    world.store.next_of("complete", Fault::Slow(Duration::from_secs(4)));
    service.run("p-1").await.unwrap();
    assert!(!service.run("p-1").await.unwrap().is_duplicate(), "its retention is over");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_an_answer_from_memory_goes_on() {
    let world = World::new(MEGABYTE);
    world.service().run("p-1").await.unwrap();
    sleep(Duration::from_secs(10)).await;
    let answer = world.cache.apply(acquire("p-1")).await.unwrap();
    assert_eq!(world.cache.hits(), 1);
    assert_eq!(answer.now, world.clock.now());
}
