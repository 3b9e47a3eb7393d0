//! How a grant ends in the store: once, whatever happens to the command and its answer.

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{
    Answer, BoxError, Command, LostCause, Operation, Outcome, Reply, Request, State,
};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{
    Guard, IdempotencyError, LockKeeper, MemoryStore, Store, StoreError, StoreErrorKind, reply,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{
    Guarding, HOUR, TTL, World, fingerprinting, is_pending, lock, paying, refusal, request,
    settle_down, store_key,
};

#[tokio::test(start_paused = true)]
async fn the_outcome_is_told_when_the_store_has_it() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.next_of("complete", Fault::HangReply);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(world.state("p-1"), Some(State::Completed));
    world.store.release();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_repeated_until_it_is_answered_and_counts_once() {
    let faults = [Fault::LoseReply, Fault::Refuse, Fault::Hang, Fault::HangReply, Fault::Panic];
    for fault in faults {
        let world = World::new();
        let service = world.layer().with_reply(reply::json());
        let service = service
            .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>("receipt".to_owned())));
        for _ in 0..3 {
            world.store.next_of("complete", fault);
        }
        let outcome = service.run("p-1").await.unwrap();
        assert_eq!(outcome, Outcome::Processed("receipt".into()), "{fault:?}");
        assert_eq!(world.store.count("complete"), 4);
        let Outcome::Duplicate(duplicate) = service.run("p-1").await.unwrap() else {
            panic!("a duplicate");
        };
        assert_eq!((duplicate.attempts, duplicate.reply.as_deref()), (1, Some("receipt")));
        world.assert_quiet().await;
    }
}

/// The effect has happened: it must not run again because the record of it is late.
#[tokio::test(start_paused = true)]
async fn while_a_completion_is_repeated_nobody_else_gets_the_key() {
    for ttl in [Duration::from_millis(500), Duration::from_secs(2), TTL] {
        let world = World::new();
        let layer = world.layer().with_lock_ttl(ttl).unwrap();
        let (service, mut stage) = world.staged(layer);
        let call = service.start(request("p-1"));
        let (_, respond) = stage.next_request().await.unwrap();
        // One call after another is lost, as over a connection that broke without a word.
        world.store.next_of("complete", Fault::Hang);
        world.store.next_of("complete", Fault::Hang);
        respond.send_response("done");

        let elsewhere = world.neighbour();
        let neighbour = elsewhere
            .layer()
            .layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("it ran again".into())));
        while !call.is_finished() {
            if let Err(error) = &neighbour.run("p-1").await {
                let error = IdempotencyError::find(&**error).unwrap();
                assert!(error.is_contention(), "{ttl:?}: {error:?}");
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
        assert!(neighbour.run("p-1").await.unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_is_later_than_its_lock_counts_if_nobody_was_faster() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Refuse);
    respond.send_response("done");
    sleep(TTL * 20).await;
    assert!(is_pending(&call).await);
    world.store.heal();
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert_eq!(world.state("p-1"), Some(State::Completed));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_is_later_than_another_grant_changes_nothing() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Refuse);
    respond.send_response("done");
    sleep(TTL).await;
    let elsewhere = world.neighbour();
    let (neighbour, mut next) = elsewhere.staged(elsewhere.layer());
    let _next_call = neighbour.start(request("p-1"));
    let (taken_over, _respond) = next.next_request().await.unwrap();
    assert_eq!(lock(&taken_over).attempt(), 2);

    let before = world.entry("p-1");
    world.store.heal();
    let called = call.await.unwrap();
    let IdempotencyError::LockLost(lost) = refusal(&called) else {
        panic!("lost");
    };
    assert_eq!(lost.cause, LostCause::Superseded);
    assert_eq!(world.entry("p-1"), before);
    assert!(lock(&taken_over).check().is_ok());
    world.assert_quiet().await;
}

/// The store has lost the entry; what the handler did is known here alone.
#[tokio::test(start_paused = true)]
async fn a_completion_is_taken_up_although_the_entry_is_gone() {
    let world = World::new();
    let layer = fingerprinting(&world).with_lost(OnLost::Notify);
    let clock = world.clock.clone();
    let service = layer.layer(service_fn(move |_: Request<()>| {
        clock.put_forward(Duration::from_secs(8 * 24 * 60 * 60));
        ready(Ok::<_, BoxError>("done"))
    }));
    let outcome = service.start(paying("p-1", "100")).await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Processed("done"));
    assert_eq!(world.state("p-1"), Some(State::Completed));
    assert!(service.start(paying("p-1", "100")).await.unwrap().unwrap().is_duplicate());
    let called = service.start(paying("p-1", "999")).await.unwrap();
    assert!(matches!(refusal(&called), IdempotencyError::Mismatch { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_repeated_until_it_is_answered_and_counts_once() {
    for fault in [Fault::LoseReply, Fault::Refuse, Fault::HangReply] {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer());
        let call = service.start(request("p-1"));
        let (_, respond) = stage.next_request().await.unwrap();
        world.store.next_of("fail", fault);
        respond.send_error("gateway busy");
        let called = call.await.unwrap();
        let IdempotencyError::Failed(failed) = refusal(&called) else {
            panic!("failed");
        };
        let entry = world.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt(), failed.attempt), (State::Retrying, 1, 1));
        assert_eq!(entry.error().as_deref(), Some("gateway busy"));
        assert_eq!(world.store.count("fail"), 2);
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_handlers_error_is_told_although_it_cannot_be_recorded() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.usurp("p-1").await;
    respond.send_error("gateway busy");
    let called = call.await.unwrap();
    let IdempotencyError::Failed(failed) = refusal(&called) else {
        panic!("failed");
    };
    assert_eq!(failed.source.to_string(), "gateway busy");
    assert_eq!(world.state("p-1"), Some(State::Processing), "the other's");
}

#[tokio::test(start_paused = true)]
async fn a_completion_lands_although_its_future_is_dropped() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Refuse);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    call.abort();
    sleep(TTL / 2).await;
    world.store.heal();
    world.assert_quiet().await;
    assert_eq!(world.state("p-1"), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_without_the_store_ends_in_time() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Hang);
    respond.send_response("done");
    settle_down().await;
    let before = world.clock.elapsed();
    let most = Duration::from_secs(3);
    assert!(!world.keeper.shutdown(most).await.settled);
    assert_eq!(world.clock.elapsed() - before, most);
    assert!(is_pending(&call).await);
}

/// Which is why nothing is renewed when that is noticed: each of them would be cancelled and run again.
#[tokio::test(start_paused = true)]
async fn handlers_that_end_before_their_next_renewal_do_not_run_again_when_the_store_loses_its_data()
 {
    let clock = TestClock::new();
    let memory = || MemoryStore::with_clock(clock.store_clock());
    let store = Restarted(Arc::new(Mutex::new(memory())));
    let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
    tokio::spawn(task);
    let guard = Guard::new(&keeper, "payments").unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let run = |id: u64, takes: Duration| {
        let (guard, runs) = (guard.clone(), runs.clone());
        let work = async move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            sleep(takes).await;
            Ok::<_, BoxError>(())
        };
        tokio::spawn(async move { guard.run(id, work).await })
    };
    let short: Vec<_> = (0..100).map(|id| run(id, TTL / 6)).collect();
    let long = run(100, TTL);
    settle_down().await;
    *store.0.lock().unwrap() = memory();
    for call in short {
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed(()));
    }
    for id in 0..100 {
        assert!(run(id, TTL).await.unwrap().unwrap().is_duplicate());
    }
    assert_eq!(runs.load(Ordering::Relaxed), 101);
    let called = long.await.unwrap();
    assert!(matches!(refusal(&called), IdempotencyError::LockLost(_)), "{called:?}");
    assert!(clock.elapsed() <= TTL / 3, "with its next renewal");
}

/// A store whose entries can be taken away.
#[derive(Clone)]
struct Restarted(Arc<Mutex<MemoryStore>>);

impl Store for Restarted {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let store = self.0.lock().unwrap().clone();
        store.apply(command).await
    }
}

/// Nobody waits for it any more, and nobody can ask it anything; but it knows of a completion.
#[tokio::test(start_paused = true)]
async fn a_keeper_without_handles_settles_what_is_left_and_ends() {
    for back in [true, false] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = FaultyStore::new(memory.clone());
        let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
        let task = tokio::spawn(task);
        let guard = Guard::new(&keeper, "payments").unwrap();
        drop(keeper);
        store.always_of("complete", Fault::Refuse);
        let run = async move { guard.run("p-1", async |_| Ok::<_, BoxError>(())).await };
        let call = tokio::spawn(run);
        settle_down().await;
        call.abort();
        drop(call.await);
        assert!(!task.is_finished());
        if back {
            store.heal();
        }
        tokio::time::timeout(HOUR, task).await.unwrap().unwrap();
        let expected = if back { State::Completed } else { State::Processing };
        assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_finds_nobody_left_is_handed_back() {
    let clock = TestClock::new();
    let memory = MemoryStore::with_clock(clock.store_clock());
    let store = FaultyStore::new(memory.clone());
    let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
    let task = tokio::spawn(task);
    store.next_of("acquire", Fault::HangReply);
    let guard = Guard::new(keeper, "payments").unwrap();
    let run = async move { guard.run("p-1", async |_| Ok::<_, BoxError>(())).await };
    let call = tokio::spawn(run);
    settle_down().await;
    call.abort(); // with the last handle
    settle_down().await;
    assert_eq!(memory.entry(&store_key("p-1")).unwrap().state(), State::Processing);
    store.release();
    task.await.unwrap();
    let entry = memory.entry(&store_key("p-1")).unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

/// An entry of another version, say: no repeat would change that.
#[tokio::test(start_paused = true)]
async fn a_completion_is_not_repeated_when_the_store_cannot_read_the_entry() {
    for reply in [false, true] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = Unreadable { memory, reply };
        let (keeper, task) = LockKeeper::unspawned(store, clock.clock());
        tokio::spawn(task);
        let guard = Guard::new(&keeper, "payments").unwrap();
        let run = guard.run("p-1", async |_| Ok::<_, BoxError>(()));
        let called = tokio::time::timeout(HOUR, run).await.unwrap();
        let IdempotencyError::Store(error) = refusal(&called) else {
            panic!("the store's error");
        };
        assert_eq!(error.kind(), StoreErrorKind::Unreadable);
        assert!(keeper.shutdown(Duration::from_secs(1)).await.settled);
    }
}

/// Grants the lock, and then finds something else in its place: answered, or told as an error.
#[derive(Clone)]
struct Unreadable {
    memory: MemoryStore,
    reply: bool,
}

impl Store for Unreadable {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let is_acquire = matches!(command.operation, Operation::Acquire { .. });
        let answer = self.memory.apply(command).await?;
        match self.reply {
            _ if is_acquire => Ok(answer),
            true => Ok(Answer::new(answer.now, Reply::Corrupt)),
            false => Err(StoreError::unreadable("another version")),
        }
    }
}
