//! What the orders mean that one meets.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{
    BoxError, DecodeError, DecodeLayer, Outcome, Record, Request, State, error, key,
};
use campanile_idempotency::{IdempotencyError, IdempotencyLayer, WaitForLock};
use campanile_test::faults::Fault;
use tokio::time::{Instant, sleep};
use tower::load_shed::error::Overloaded;
use tower::retry::Policy;
use tower::timeout::error::Elapsed;
use tower::{ServiceBuilder, ServiceExt};
use tower_test::mock;

use crate::world::{
    Guarding, HOUR, Handler, Stage, TTL, World, failed, lock, request, settle_down,
};

pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Tries again at once, or after a while.
#[derive(Clone)]
pub(super) struct Again {
    pub(super) left: u32,
    pub(super) after: Duration,
}

impl<T> Policy<Request<()>, T, BoxError> for Again {
    type Future = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(
        &mut self,
        _: &mut Request<()>,
        result: &mut Result<T, BoxError>,
    ) -> Option<Self::Future> {
        result.as_ref().err()?;
        self.left = self.left.checked_sub(1)?;
        Some(Box::pin(sleep(self.after)))
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }
}

pub(super) fn stage() -> (Handler, Stage) {
    mock::pair()
}

#[tokio::test(start_paused = true)]
async fn decode_idempotency_takes_no_lock_for_what_does_not_decode_and_decodes_each_duplicate() {
    let world = World::new();
    let decoded = Arc::new(AtomicUsize::new(0));
    let counted = decoded.clone();
    let decode = DecodeLayer::with(move |record: &Record| {
        counted.fetch_add(1, Ordering::Relaxed);
        record.payload().map(|payload| payload.len()).ok_or("no payload")
    });
    let service = ServiceBuilder::new()
        .layer(decode)
        .layer(IdempotencyLayer::new(&world.keeper, "payments", key::header("id")).unwrap())
        .service_fn(|request: Request<usize>| ready(Ok::<_, BoxError>(request.into_body())));
    let record = |id: &'static str| Record::builder("payments", 0, 0).header("id", id);
    let bad = service.clone().oneshot(record("bad").build()).await.unwrap_err();
    assert!(error::find::<DecodeError>(&*bad).is_some());
    assert_eq!(world.store.commands(), [], "no lock, and no attempt");

    let good = record("good").payload("1234").build();
    let outcome = service.clone().oneshot(good.clone()).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(4));
    decoded.store(0, Ordering::Relaxed);
    assert!(service.oneshot(good).await.unwrap().is_duplicate());
    assert_eq!(decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn raw_idempotency_decode_gives_up_under_the_lock_what_does_not_decode() {
    let world = World::new();
    let decoded = Arc::new(AtomicUsize::new(0));
    let counted = decoded.clone();
    let decode = DecodeLayer::with(move |record: &Record| {
        counted.fetch_add(1, Ordering::Relaxed);
        record.payload().map(|payload| payload.len()).ok_or("no payload")
    });
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::raw())
        .layer(IdempotencyLayer::new(&world.keeper, "payments", key::header("id")).unwrap())
        .layer(decode)
        .service_fn(|request: Request<usize>| ready(Ok::<_, BoxError>(request.into_body())));
    let record = |id: &'static str| Record::builder("payments", 0, 0).header("id", id);
    let good = record("good").payload("1234").build();
    let outcome = service.clone().oneshot(good.clone()).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(4));
    assert!(service.clone().oneshot(good).await.unwrap().is_duplicate());
    assert_eq!(decoded.load(Ordering::Relaxed), 1, "a duplicate is not decoded");

    let called = service.oneshot(record("bad").build()).await;
    let failure = failed(&called);
    assert!(error::find::<DecodeError>(&*failure.source).is_some());
    failure.take_lock().unwrap().reject("published").await.unwrap();
    assert_eq!(world.state("bad"), Some(State::Failed));
}

#[tokio::test(start_paused = true)]
async fn idempotency_timeout_fails_the_attempt_of_a_slow_handler() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new().layer(world.layer()).timeout(LIMIT).service(handler);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    let called = call.await.unwrap();
    assert!(error::find::<Elapsed>(&*failed(&called).source).is_some());
    assert!(failed(&called).retry_after.is_some());
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
    assert_eq!(entry.error().as_deref(), Some("request timed out"));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_cancels_while_it_acquires() {
    let world = World::new();
    let (handler, _stage) = stage();
    let service =
        ServiceBuilder::new().timeout(Duration::from_secs(2)).layer(world.layer()).service(handler);
    world.store.next_of("acquire", Fault::HangReply);
    let error = service.run("p-1").await.unwrap_err();
    assert!(error.is::<Elapsed>());
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 0));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_counts_an_attempt_while_it_processes() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new().timeout(LIMIT).layer(world.layer()).service(handler);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    assert!(call.await.unwrap().unwrap_err().is::<Elapsed>());
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn timeout_idempotency_completes_what_it_settles() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new().timeout(LIMIT).layer(world.layer()).service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Refuse);
    respond.send_response("done");
    assert!(call.await.unwrap().unwrap_err().is::<Elapsed>());
    world.store.heal();
    sleep(Duration::from_secs(2)).await;
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}

#[tokio::test(start_paused = true)]
async fn idempotency_retry_repeats_under_one_lock_and_one_attempt() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let after = TTL * 2; // the lock is renewed meanwhile
    let service =
        ServiceBuilder::new().layer(world.layer()).retry(Again { left: 3, after }).service(handler);
    let call = service.start(request("p-1"));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (request, respond) = stage.next_request().await.unwrap();
        assert!(lock(&request).check().is_ok());
        seen.push((lock(&request).token(), lock(&request).attempt()));
        respond.send_error("gateway busy");
    }
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    assert!(seen.iter().all(|it| it == &seen[0]));
    assert_eq!(world.store.count("acquire"), 1);
    assert_eq!(world.entry("p-1").unwrap().attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_idempotency_acquires_anew_each_time() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).and_failures())
        .layer(world.layer())
        .service(handler);
    let call = service.start(request("p-1"));
    let (first, respond) = stage.next_request().await.unwrap();
    respond.send_error("gateway busy");
    let (second, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    let (first, second) = (lock(&first), lock(&second));
    assert!(second.token() > first.token());
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
}

/// The stack for production: the outer one waits for locks, the inner one repeats the handler.
#[tokio::test(start_paused = true)]
async fn retry_idempotency_retry_timeout_waits_outside_and_repeats_inside() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let after = Duration::from_secs(1);
    let service = ServiceBuilder::new()
        .retry(WaitForLock::new(HOUR).and_failures())
        .layer(world.layer())
        .retry(Again { left: 1, after })
        .timeout(LIMIT)
        .service(handler);
    let call = service.start(request("p-1"));
    let waiter = service.start(request("p-1"));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (hangs, _respond) = stage.next_request().await.unwrap();
        seen.push(lock(&hangs).attempt());
        sleep(LIMIT).await;
    }
    let (last, respond) = stage.next_request().await.unwrap();
    seen.push(lock(&last).attempt());
    respond.send_response("done");
    assert_eq!(seen, [1, 1, 2]);
    let outcomes = [call.await.unwrap().unwrap(), waiter.await.unwrap().unwrap()];
    assert_eq!(outcomes.iter().filter(|it| it.is_duplicate()).count(), 1);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn rate_limit_idempotency_lets_duplicates_use_up_the_rate() {
    let world = World::new();
    let mut service = ServiceBuilder::new()
        .rate_limit(1, Duration::from_secs(60))
        .layer(world.layer())
        .service_fn(|_: Request<()>| ready(Ok::<_, BoxError>(())));
    let start = Instant::now();
    for _ in 0..3 {
        tower::Service::call(service.ready().await.unwrap(), request("p-1")).await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs() / 60, 2);
}

/// A buffer hides the readiness of what is behind it, so the lock is held while it queues.
#[tokio::test(start_paused = true)]
async fn idempotency_buffer_holds_the_lock_while_it_queues() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .buffer(4)
        .rate_limit(1, TTL * 3)
        .service(handler);
    let calls = [service.start(request("p-1")), service.start(request("p-2"))];
    let (_, respond) = stage.next_request().await.unwrap();
    respond.send_response("done");
    settle_down().await;
    assert_eq!(world.state("p-2"), Some(State::Processing));
    let (second, respond) = stage.next_request().await.unwrap();
    assert!(lock(&second).check().is_ok(), "renewed for three times its life");
    respond.send_response("done");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn load_shed_idempotency_sheds_before_it_asks_the_store() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .load_shed()
        .layer(world.layer())
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.forget_calls();
    assert!(service.run("p-2").await.unwrap_err().is::<Overloaded>());
    assert_eq!(world.store.commands(), []);
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn idempotency_load_shed_releases_what_it_sheds() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .load_shed()
        .concurrency_limit(1)
        .service(handler);
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    for _ in 0..20 {
        let called = service.run("p-2").await;
        assert!(error::find::<Overloaded>(&*failed(&called).source).is_some());
        let entry = world.entry("p-2").unwrap();
        assert_eq!((entry.attempt(), entry.interrupts()), (0, 0));
    }
    respond.send_response("done");
    call.await.unwrap().unwrap();
    let call = service.start(request("p-2"));
    let (request, respond) = stage.next_request().await.unwrap();
    assert_eq!(lock(&request).attempt(), 1);
    respond.send_response("done");
    call.await.unwrap().unwrap();
}

/// In its place outside, a time-out bounds all attempts together.
#[tokio::test(start_paused = true)]
async fn timeout_retry_idempotency_is_a_budget_for_all_attempts() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new()
        .timeout(TTL * 3)
        .retry(WaitForLock::new(HOUR).and_failures())
        .layer(world.layer())
        .timeout(TTL)
        .service(handler);
    let call = service.start(request("p-1"));
    let hang = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(request) = stage.next_request().await {
            held.push(request);
        }
    });
    let called = call.await.unwrap();
    assert!(called.as_ref().unwrap_err().is::<Elapsed>());
    assert!(IdempotencyError::find(&**called.as_ref().unwrap_err()).is_none());
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!(entry.state(), State::Retrying);
    assert!((2..=3).contains(&entry.attempt()));
    drop(service);
    hang.await.unwrap();
}
