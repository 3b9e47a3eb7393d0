//! Waiting for a key that somebody else holds, inside the layer and around it.

use std::time::Duration;

use campanile_core::{BoxError, Outcome, Request, error};
use campanile_idempotency::policy::OnLocked;
use campanile_idempotency::{IdempotencyError, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceBuilder, service_fn};
use tower_test::mock;

use crate::world::{
    Guarding, Handler, Stage, TTL, TestLayer, World, failed, failing, is_pending, lock, refusal,
    request,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn patient(world: &World) -> TestLayer {
    world.layer().with_locked(OnLocked::Wait { at_most: PATIENCE })
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_answered_when_the_holder_ends() {
    let world = World::new();
    let (service, mut stage) = world.staged(patient(&world));
    let holder = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    world.store.forget_calls();
    sleep(TTL / 10).await;
    assert_eq!(world.store.commands(), [], "waiting writes nothing");

    respond.send_response("done");
    holder.await.unwrap().unwrap();
    let now = Instant::now();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    assert!(now.elapsed() <= Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn waiters_hold_no_permit_and_none_waits_for_ever() {
    let world = World::new();
    let service = ServiceBuilder::new()
        .layer(patient(&world))
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(async |_: Request<()>| {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(())
        });
    let calls: Vec<_> = (0..3).map(|_| service.start(request("p-1"))).collect();
    let other = service.start(request("p-2"));
    let start = Instant::now();
    let mut processed = 0;
    for call in calls {
        let outcome = call.await.unwrap().unwrap();
        processed += usize::from(outcome == Outcome::Processed(()));
    }
    assert_eq!(processed, 1);
    assert_eq!(other.await.unwrap().unwrap(), Outcome::Processed(()));
    assert!(start.elapsed() <= Duration::from_secs(3));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn while_one_waits_another_key_is_let_in() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (neighbour, mut held) = elsewhere.staged(elsewhere.layer());
    let _holder = neighbour.start(request("p-1"));
    let _held = held.next_request().await.unwrap();

    let (handler, mut stage): (Handler, Stage) = mock::pair();
    let service = patient(&world).layer(ConcurrencyLimitLayer::new(1).layer(handler));
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let call = service.start(request("p-2"));
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_looks_again_at_a_key_that_is_held_elsewhere() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (neighbour, mut held) = elsewhere.staged(elsewhere.layer());
    let holder = neighbour.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();
    let (service, _stage) = world.staged(patient(&world));
    let waiter = service.start(request("p-1"));
    sleep(TTL).await;
    assert!(is_pending(&waiter).await);
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    let now = Instant::now();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    assert!(now.elapsed() <= TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_when_its_time_is_over_and_not_before_and_changes_nothing() {
    for at_most in [Duration::from_millis(700), Duration::from_secs(100), TTL] {
        let world = World::new();
        let layer = world.layer().with_locked(OnLocked::Wait { at_most });
        let (service, mut stage) = world.staged(layer);
        let _holder = service.start(request("p-1"));
        let (request_of_holder, _respond) = stage.next_request().await.unwrap();
        let start = Instant::now();
        let called = service.run("p-1").await;
        assert!(matches!(refusal(&called), IdempotencyError::Locked { .. }));
        let waited = start.elapsed();
        assert!((at_most..=at_most + Duration::from_millis(2)).contains(&waited), "{waited:?}");
        assert!(lock(&request_of_holder).check().is_ok());
    }
}

/// What counts is how long they waited, not how long they would have.
#[tokio::test(start_paused = true)]
async fn waiters_that_are_woken_early_may_wait_on() {
    const WAITERS: u64 = 10;
    let world = World::new();
    let holds = Duration::from_secs(5);
    let service = patient(&world).layer(service_fn(move |request: Request<()>| async move {
        sleep(holds).await;
        match request.lock().unwrap().attempt() {
            1 => Err::<(), BoxError>(overloaded()),
            _ => unreachable!("what was overloaded is not counted"),
        }
    }));
    let calls: Vec<_> = (0..WAITERS).map(|_| service.start(request("p-1"))).collect();
    let mut ran = 0;
    for call in calls {
        match refusal(&call.await.unwrap()) {
            IdempotencyError::Failed(_) => ran += 1,
            other => panic!("after {ran}: {other:?}"),
        }
    }
    assert_eq!(ran, WAITERS);
}

fn overloaded() -> BoxError {
    Box::new(tower::load_shed::error::Overloaded::new())
}

#[tokio::test(start_paused = true)]
async fn endless_patience_is_no_error() {
    let world = World::new();
    let at_most = Duration::MAX;
    let layer = world.layer().with_locked(OnLocked::Wait { at_most });
    let (service, mut stage) = world.staged(layer);
    let _holder = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    sleep(TTL * 10).await;
    respond.send_response("done");
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_may_be_dropped() {
    let world = World::new();
    let (service, mut stage) = world.staged(patient(&world));
    let holder = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let before = world.entry("p-1");
    waiter.abort();
    assert!(is_pending(&holder).await);
    assert_eq!(world.entry("p-1"), before);
    respond.send_response("done");
    assert_eq!(holder.await.unwrap().unwrap(), Outcome::Processed("done"));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_waits_for_the_lock() {
    let world = World::new();
    let elsewhere = world.neighbour();
    for holder in [&world, &elsewhere] {
        let (neighbour, mut held) = holder.staged(holder.layer());
        let id = format!("{:p}", holder);
        let holds = neighbour.start(request(&id));
        let (_, respond) = held.next_request().await.unwrap();
        let (handler, _stage): (Handler, Stage) = mock::pair();
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(PATIENCE))
            .layer(world.layer())
            .service(handler);
        let call = service.start(request(&id));
        sleep(TTL / 2).await;
        assert!(is_pending(&call).await);
        respond.send_response("done");
        holds.await.unwrap().unwrap();
        assert!(call.await.unwrap().unwrap().is_duplicate());
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_asks_again_when_the_refusal_says_and_not_before() {
    let world = World::new();
    let mut elsewhere = world.neighbour();
    let (neighbour, mut held) = elsewhere.staged(elsewhere.layer());
    let _holder = neighbour.start(request("p-1"));
    let _held = held.next_request().await.unwrap();
    elsewhere.crash().await;
    let handler = service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().attempt())
    });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(PATIENCE))
        .layer(world.layer())
        .service(handler);
    let start = Instant::now();
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(2));
    assert!((TTL..TTL + TTL / 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    // It looks about three times in the life of a lock.
    assert!((3..=5).contains(&world.store.count("acquire")));
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_waits_for_the_back_off_that_another_left() {
    let world = World::new();
    let later = Duration::from_secs(7);
    let fail = failing(&world.layer(), move || error::retry_after("busy", later).into());
    assert!(matches!(refusal(&fail.run("p-1").await), IdempotencyError::Failed(_)));
    let handler = service_fn(async |request: Request<()>| {
        Ok::<_, BoxError>(request.lock().unwrap().attempt())
    });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(PATIENCE))
        .layer(world.layer())
        .service(handler);
    let start = Instant::now();
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed(2));
    let waited = start.elapsed();
    assert!((later..=later + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

/// Also where it is a lock that the handler itself did not get.
#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_leaves_the_handlers_errors_alone() {
    let world = World::new();
    let (holding, mut held) = world.staged(world.layer());
    let _holder = holding.start(request("account-7"));
    let _held = held.next_request().await.unwrap();
    for id in ["p-1", "p-2"] {
        let inner = holding.clone();
        let handler = service_fn(move |called: Request<()>| {
            let inner = inner.clone();
            async move {
                match called.lock().unwrap().key().as_bytes() {
                    b"p-1" => Err::<&str, BoxError>("gateway busy".into()),
                    _ => inner.start(request("account-7")).await?.map(|_| "done"),
                }
            }
        });
        let service = ServiceBuilder::new()
            .retry(WaitForLock::new(PATIENCE))
            .layer(world.layer())
            .service(handler);
        let start = Instant::now();
        let called = service.run(id).await;
        assert_eq!(failed(&called).attempt, 1);
        assert!(start.elapsed() <= Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_gives_up_when_its_time_is_over() {
    let world = World::new();
    let (neighbour, mut held) = world.staged(world.layer());
    let _holder = neighbour.start(request("p-1"));
    let _held = held.next_request().await.unwrap();
    let (handler, _stage): (Handler, Stage) = mock::pair();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(PATIENCE))
        .layer(world.layer())
        .service(handler);
    let start = Instant::now();
    let called = service.run("p-1").await;
    assert!(matches!(refusal(&called), IdempotencyError::Locked { .. }));
    let waited = start.elapsed();
    assert!((PATIENCE..=PATIENCE + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_waits_out_failures_if_that_is_chosen() {
    let world = World::new();
    let handler =
        service_fn(async |request: Request<()>| match request.lock().unwrap().attempt() {
            3 => Ok("done"),
            _ => Err::<_, BoxError>("gateway busy".into()),
        });
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX).and_failures())
        .layer(world.layer())
        .service(handler);
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));
    assert_eq!(world.entry("p-1").unwrap().attempt(), 3);

    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX))
        .layer(world.layer())
        .service(handler);
    assert!(matches!(refusal(&service.run("p-2").await), IdempotencyError::Failed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_ends_with_the_attempts() {
    let world = World::new();
    let handler = service_fn(async |_: Request<()>| Err::<(), BoxError>("declined".into()));
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(Duration::MAX).and_failures())
        .layer(world.layer().with_max_attempts(3).unwrap())
        .service(handler);
    let called = service.run("p-1").await;
    let IdempotencyError::Failed(failed) = refusal(&called) else {
        panic!("failed");
    };
    assert_eq!((failed.attempt, failed.retry_after), (3, None));
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_the_layer_does_not_wait_for_the_store() {
    let world = World::new();
    world.store.always(Fault::Refuse);
    let (handler, _stage): (Handler, Stage) = mock::pair();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(PATIENCE).and_failures())
        .layer(world.layer())
        .service(handler);
    let start = Instant::now();
    assert!(matches!(refusal(&service.run("p-1").await), IdempotencyError::Store(_)));
    assert!(start.elapsed() < Duration::from_secs(1));
}
