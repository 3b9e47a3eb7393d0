//! Who holds a concurrency limit's permit, and for how long.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Request};
use campanile_idempotency::policy::OnLocked;
use campanile_test::faults::Fault;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{ServiceBuilder, service_fn};

use super::run::{Again, LIMIT, stage};
use crate::world::{Guarding, TTL, World, is_pending, lock, request};

#[tokio::test(start_paused = true)]
async fn idempotency_concurrency_takes_the_permit_first_and_gives_it_back_before_it_settles() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let next = service.start(request("p-2"));
    assert!(is_pending(&next).await);
    assert_eq!(world.store.count("acquire"), 1, "permit first, then lock");
    next.abort();

    world.store.next_of("complete", Fault::HangReply);
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(permits.available_permits(), 1);
    world.store.release();
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn idempotency_retry_concurrency_asks_for_the_permit_again_under_the_lock() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let after = Duration::from_secs(1);
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .retry(Again { left: 1, after })
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_error("gateway busy");
    // While it backs off, another has the permit.
    let other = service.start(request("p-2"));
    let (_, respond) = stage.next_request().await.unwrap();
    sleep(TTL).await;
    assert!(is_pending(&call).await);
    respond.send_response("done");
    other.await.unwrap().unwrap();
    let (request, respond) = stage.next_request().await.unwrap();
    assert!(lock(&request).check().is_ok());
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_lets_duplicates_wait_for_permits() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new().concurrency_limit(1).layer(world.layer()).service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    let duplicate = service.start(request("p-1"));
    assert!(is_pending(&duplicate).await);
    respond.send_response("done");
    call.await.unwrap().unwrap();
    assert!(duplicate.await.unwrap().unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn idempotency_concurrency_holds_the_permit_while_it_acquires_and_gives_a_duplicates_back() {
    let world = World::new();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(service_fn(async |_: Request<()>| Ok::<_, BoxError>("done")));
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));

    world.store.next_of("acquire", Fault::HangReply);
    let duplicate = service.start(request("p-1"));
    assert!(is_pending(&duplicate).await);
    assert_eq!(permits.available_permits(), 0);
    world.store.release();
    assert!(duplicate.await.unwrap().unwrap().is_duplicate());
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_holds_the_permit_while_it_settles() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let permits = Arc::new(Semaphore::new(1));
    let service = ServiceBuilder::new()
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .layer(world.layer())
        .service(handler);
    world.store.next_of("complete", Fault::HangReply);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    assert!(is_pending(&call).await);
    assert_eq!(permits.available_permits(), 0);
    world.store.release();
    call.await.unwrap().unwrap();
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn concurrency_idempotency_holds_the_permit_while_it_waits_for_a_lock() {
    let world = World::new();
    let elsewhere = world.neighbour();
    let (neighbour, mut held) = elsewhere.staged(elsewhere.layer());
    let holder = neighbour.start(request("p-1"));
    let (_, respond) = held.next_request().await.unwrap();

    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .concurrency_limit(1)
        .layer(world.layer().with_locked(OnLocked::Wait { at_most: LIMIT * 10 }))
        .service(handler);
    let waiter = service.start(request("p-1"));
    assert!(is_pending(&waiter).await);
    let other = service.start(request("p-2"));
    assert!(is_pending(&other).await);
    assert_eq!(world.state("p-2"), None, "another key waits, too");
    respond.send_response("done");
    holder.await.unwrap().unwrap();
    assert!(waiter.await.unwrap().unwrap().is_duplicate());
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    other.await.unwrap().unwrap();
}
