//! Taking the lock: one acquisition for each key, counted once, whatever happens to its answer.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{
    Answer, BoxError, Command, FencingToken, Operation, Outcome, Owner, Request, Retention, State,
};
use campanile_idempotency::{
    Guard, IdempotencyError, LockKeeper, MemoryStore, Store, StoreError, StoreErrorKind,
};
use campanile_test::TestClock;
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::sleep;
use tower::{Layer, service_fn};

use crate::world::{
    Guarding, HOUR, TTL, World, fingerprinting, is_pending, lock, paying, refusal, request,
    settle_down, store_key,
};

/// The nonces of all acquires so far.
fn owners(world: &World) -> Vec<Owner> {
    let commands = world.store.commands();
    let owner = |command: &Command| match command.operation {
        Operation::Acquire { owner, .. } => Some(owner),
        _ => None,
    };
    commands.iter().filter_map(owner).collect()
}

#[tokio::test(start_paused = true)]
async fn of_many_deliveries_here_one_acquires() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let calls: Vec<_> = (0..20).map(|_| service.start(request("p-1"))).collect();
    let (_, respond) = stage.next_request().await.unwrap();
    settle_down().await;
    assert_eq!(world.store.count("acquire"), 1);
    respond.send_response("done");
    let mut processed = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(outcome) => processed += usize::from(outcome == Outcome::Processed("done")),
            called => assert!(refusal(&called).is_contention()),
        }
    }
    assert_eq!(processed, 1);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_at_the_same_moment_one_runs() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let runs = Arc::new(AtomicUsize::new(0));
    let service = |world: &World| {
        let runs = runs.clone();
        world.layer().layer(service_fn(move |_: Request<()>| {
            runs.fetch_add(1, Ordering::Relaxed);
            async {
                sleep(TTL * 3).await;
                Ok::<_, BoxError>(())
            }
        }))
    };
    for number in 0..50 {
        let id = format!("p-{number}");
        let (here, there) = (service(&world), service(&elsewhere));
        let (here, there) = (here.start(request(&id)), there.start(request(&id)));
        let (here, there) = (here.await.unwrap(), there.await.unwrap());
        assert!(here.is_ok() != there.is_ok());
        let loser = if here.is_ok() { there } else { here };
        assert!(refusal(&loser).is_contention());
    }
    assert_eq!(runs.load(Ordering::Relaxed), 50);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_a_call_is_in_flight_travels_together() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    for id in ["first", "second"] {
        world.store.next(Fault::HangReply);
        drop(service.start(request(id)));
        settle_down().await;
    }
    for number in 0..7 {
        drop(service.start(request(&format!("p-{number}"))));
        settle_down().await;
    }
    assert_eq!(world.store.calls().len(), 2, "too few to be worth another call");
    world.store.release();
    for _ in 0..9 {
        stage.next_request().await.unwrap();
    }
    let calls: Vec<_> = world.store.calls().iter().map(|call| call.commands.len()).collect();
    assert_eq!(calls, [1, 1, 7]);
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_runnable_together_travel_together() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let calls: Vec<_> =
        (0..7).map(|number| service.start(request(&format!("p-{number}")))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let calls: Vec<_> = world.store.calls().iter().map(|call| call.commands.len()).collect();
    assert_eq!(calls, [7, 7], "the acquires, and the completions");
}

/// One that takes more at once splits them among more servers.
#[tokio::test(start_paused = true)]
async fn the_more_a_store_takes_at_once_the_more_must_wait_to_be_worth_another_call() {
    for (most, worth) in [(1, [1, 1, 1]), (64, [1, 8, 16]), (1024, [16, 128, 256])] {
        let clock = TestClock::new();
        let memory = MemoryStore::with_clock(clock.store_clock());
        let store = Taking { most, store: FaultyStore::new(memory) };
        let (keeper, task) = LockKeeper::unspawned(store.clone(), clock.clock());
        tokio::spawn(task);
        store.store.always(Fault::Hang);
        let guard = Guard::new(&keeper, "payments").unwrap();
        let mut numbers = 0_u32..;
        let mut come = async |count: usize| {
            for number in numbers.by_ref().take(count) {
                let guard = guard.clone();
                let run = async move { guard.run(number, async |_| Ok::<_, BoxError>(())).await };
                drop(tokio::spawn(run));
            }
            settle_down().await;
            store.store.calls().len()
        };
        assert_eq!(come(1).await, 1, "{most}");
        for (calls, worth) in (2..).zip(worth) {
            assert_eq!(come(worth - 1).await, calls - 1, "{most}");
            assert_eq!(come(1).await, calls, "{most}");
        }
        assert_eq!(come(2 * most).await, 4, "{most}: no more than four");
    }
}

/// A store that takes so many at once.
#[derive(Clone)]
struct Taking {
    most: usize,
    store: FaultyStore<MemoryStore>,
}

impl Store for Taking {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        self.store.apply(command).await
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        self.store.apply_batch(batch).await
    }

    fn max_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.most).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn no_batch_is_larger_than_the_store_likes_nor_has_a_key_twice() {
    let world = World::new();
    let (service, _stage) = world.staged(world.layer());
    world.store.always(Fault::Slow(Duration::from_millis(5)));
    for number in 0..1000 {
        drop(service.start(request(&format!("p-{number}"))));
    }
    sleep(HOUR).await;
    for call in world.store.calls() {
        let keys: HashSet<_> = call.commands.iter().map(|command| &command.key).collect();
        assert!(call.commands.len() <= 64);
        assert_eq!(keys.len(), call.commands.len());
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_is_lost_is_cancelled_and_no_attempt_is_counted() {
    for fault in [Fault::LoseReply, Fault::HangReply] {
        let world = World::new();
        let (service, mut stage) = world.staged(world.layer());
        world.store.next_of("acquire", fault);
        world.store.next_of("cancel", Fault::LoseReply);
        let called = service.run("p-1").await;
        assert!(matches!(refusal(&called), IdempotencyError::Store(_)));
        sleep(Duration::from_secs(1)).await;
        let entry = world.entry("p-1").unwrap();
        assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
        assert_eq!(world.store.count("cancel"), 2, "repeated until it is answered");

        let call = service.start(request("p-1"));
        let (request, respond) = stage.next_request().await.unwrap();
        assert_eq!(lock(&request).attempt(), 1);
        respond.send_response("done");
        call.await.unwrap().unwrap();
        world.assert_quiet().await;
    }
}

/// A late copy of the cancel would free a lock that was granted to its nonce.
#[tokio::test(start_paused = true)]
async fn a_nonce_that_is_cancelled_is_never_acquired_with_again() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    world.store.next_of("acquire", Fault::LoseReply);
    world.store.next_of("cancel", Fault::Refuse);
    world.store.next_of("cancel", Fault::Refuse);
    service.run("p-1").await.unwrap_err();
    let granted = world.entry("p-1").unwrap();
    assert_eq!((granted.state(), granted.attempt()), (State::Processing, 1));

    // As long as the cancel is not answered, the store is as good as down for this key.
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Store(_)), "{called:?}");

    let call = service.start(request("p-1"));
    let (request, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1, "the first attempt was handed back");
    let owners = owners(&world);
    assert_eq!(owners.len(), 2);
    assert_ne!(owners[0], owners[1]);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_comes_while_its_key_is_cancelled_acquires_anew_when_that_is_answered() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    world.store.next_of("acquire", Fault::LoseReply);
    world.store.next_of("cancel", Fault::HangReply);
    service.run("p-1").await.unwrap_err();
    let call = service.start(request("p-1"));
    assert!(is_pending(&call).await);
    world.store.release();
    let (request, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    let owners = owners(&world);
    assert_ne!(owners[0], owners[1]);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_comes_while_its_key_is_cancelled_does_not_wait_longer_than_for_one_call() {
    let world = World::new();
    let (service, _stage) = world.staged(world.layer());
    world.store.next_of("acquire", Fault::LoseReply);
    world.store.next_of("cancel", Fault::HangReply);
    service.run("p-1").await.unwrap_err();
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Store(_)), "{called:?}");
}

#[tokio::test(start_paused = true)]
async fn another_payload_after_an_acquire_in_doubt_is_no_mismatch_for_nobody_has_tried_it() {
    let world = World::new();
    let service = fingerprinting(&world);
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    world.store.next_of("acquire", Fault::LoseReply);
    world.store.next_of("cancel", Fault::Refuse);
    service.start(paying("p-1", "100")).await.unwrap().unwrap_err();
    assert_eq!(service.start(paying("p-1", "120")).await.unwrap().unwrap(), Outcome::Processed(()));
}

/// Also when nobody asks for the key again.
#[tokio::test(start_paused = true)]
async fn an_acquire_in_doubt_is_cancelled_after_an_outage_that_was_longer_than_its_lock() {
    let world = World::new();
    let (service, _stage) = world.staged(world.layer());
    world.store.next_of("acquire", Fault::LoseReply);
    world.store.always_of("cancel", Fault::Refuse);
    service.run("p-1").await.unwrap_err();
    sleep(TTL * 3 / 2).await;
    world.store.heal();
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_everything_goes_on_and_nothing_was_counted() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply, Fault::HangReply, Fault::Panic] {
        let id = format!("{fault:?}");
        world.store.always(fault);
        for _ in 0..10 {
            let called = service.run(&id).await;
            assert!(matches!(
                refusal(&called),
                IdempotencyError::Store(_) | IdempotencyError::Locked { .. }
            ));
            sleep(TTL / 3).await;
        }
        world.store.heal();
        let call = service.start(request(&id));
        let (request, respond) = stage.next_request().await.unwrap();
        assert_eq!(lock(&request).attempt(), 1, "{fault:?}");
        respond.send_response("done");
        call.await.unwrap().unwrap();
    }
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_heard_of_after_its_end_is_handed_back() {
    let world = World::new();
    let layer = world.layer().with_lock_ttl(Duration::from_millis(500)).unwrap();
    let (service, _stage) = world.staged(layer);
    world.store.next_of("acquire", Fault::Slow(Duration::from_millis(40)));
    // The process was stopped between the command and its answer.
    let call = service.start(request("p-1"));
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(world.store.count("acquire"), 1);
    world.clock.put_forward(Duration::from_secs(1));
    let called = call.await.unwrap();
    let IdempotencyError::Store(error) = refusal(&called) else {
        panic!("the store's error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_of_answers_answers_nobody() {
    for fault in [Fault::FewerAnswers, Fault::MoreAnswers] {
        let world = World::new();
        let service = world.layer().layer(service_fn(async |request: Request<()>| {
            let lock = request.lock().unwrap();
            Ok::<_, BoxError>((lock.key().clone(), lock.token()))
        }));
        world.store.next(Fault::HangReply);
        let first = service.start(request("first"));
        settle_down().await;
        world.store.next_of("acquire", fault);
        let calls: Vec<_> =
            (0..5).map(|number| service.start(request(&format!("p-{number}")))).collect();
        settle_down().await;
        world.store.release();
        first.await.unwrap().unwrap();
        for call in calls {
            assert!(matches!(refusal(&call.await.unwrap()), IdempotencyError::Store(_)));
        }
        sleep(TTL).await;
        for number in 0..5 {
            let id = format!("p-{number}");
            let (key, token) = service.run(&id).await.unwrap().into_reply().unwrap();
            assert_eq!(key.as_bytes(), id.as_bytes());
            let entry = world.entry(&id).unwrap();
            assert_eq!((entry.token(), entry.attempt()), (token, 1));
        }
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_granted_a_token_below_one_that_was_seen_here() {
    let world = World::new();
    let service = world.layer().layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().token())
    }));
    let mut largest = FencingToken::ZERO;
    for number in 0..20 {
        let id = format!("p-{}", number % 7);
        if let Some(token) = service.run(&id).await.unwrap().into_reply() {
            assert!(token > largest);
            largest = token;
        }
        let commands = world.store.commands();
        for command in &commands {
            if let Operation::Acquire { floor, .. } = command.operation {
                assert!(floor <= largest);
            }
        }
        world.store.forget_calls();
        service.run(&format!("next-{number}")).await.unwrap();
        let commands = world.store.commands();
        let Operation::Acquire { floor, .. } = commands[0].operation else {
            panic!("an acquire");
        };
        assert_eq!(floor, largest);
        largest = world.entry(&format!("next-{number}")).unwrap().token();
    }
}

/// It would spread to every key, and none would have a token left some day.
#[tokio::test(start_paused = true)]
async fn an_absurd_token_of_one_key_does_not_spread_to_others() {
    let world = World::new();
    let absurd = FencingToken::new(1 << 52).unwrap();
    let (owner, ttl) = (Owner::new(7).unwrap(), TTL);
    let acquire =
        Operation::Acquire { owner, ttl, max_attempts: 0, fingerprint: None, floor: absurd };
    for operation in [acquire, Operation::Cancel { owner }] {
        let key = store_key("absurd");
        let retention = Retention::default();
        let command = Command { key, operation, retention };
        world.memory.apply(command).await.unwrap();
    }
    let service = world.layer().layer(service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().token())
    }));
    let token = |outcome: Outcome<FencingToken>| outcome.into_reply().unwrap();
    assert!(token(service.run("absurd").await.unwrap()) > absurd);
    assert!(token(service.run("p-1").await.unwrap()) < absurd);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_dropped_before_it_was_sent_is_not_sent() {
    let world = World::new();
    let (service, _stage) = world.staged(world.layer());
    for id in ["first", "second"] {
        world.store.next(Fault::HangReply);
        drop(service.start(request(id)));
        settle_down().await;
    }
    let call = service.start(request("p-1"));
    settle_down().await;
    call.abort();
    settle_down().await;
    world.store.heal();
    settle_down().await;
    assert_eq!(world.store.count("acquire"), 2);
    assert_eq!(world.entry("p-1"), None);
}
