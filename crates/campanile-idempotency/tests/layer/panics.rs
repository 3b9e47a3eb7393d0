//! User code that panics costs its own record an attempt, and nobody else anything.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use campanile_core::{BoxError, Disposition, Entry, Outcome, Request, State, classify};
use campanile_idempotency::{IdempotencyError, Panicked};
use campanile_test::faults::Fault;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::world::{Guarding, TTL, World, failed, refusal, request, settle_down};

/// When a handler panics.
#[derive(Clone, Copy, Debug)]
enum Panics {
    Called,
    PolledFirst,
    PolledLater,
    /// Its future is dropped, after it has answered.
    Dropped,
    /// The text of its error is asked for.
    Displayed,
}

use Panics::{Called, Displayed, Dropped, PolledFirst, PolledLater};

/// Those of the handler's own: caught, and its error.
const HANDLERS: [(Panics, &str); 3] =
    [(Called, "in the call"), (PolledFirst, "in a poll"), (PolledLater, "in a poll")];

/// Those after it has answered: they go through.
const LATE: [Panics; 2] = [Dropped, Displayed];

fn all() -> impl Iterator<Item = Panics> {
    HANDLERS.into_iter().map(|(panics, _)| panics).chain(LATE)
}

#[derive(Debug)]
struct Spiteful;

impl fmt::Display for Spiteful {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("in the error")
    }
}

impl Error for Spiteful {}

impl Service<Request<()>> for Panics {
    type Response = ();
    type Error = BoxError;
    type Future = Running;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Running {
        assert!(!matches!(self, Called), "in the call");
        Running(*self, 0)
    }
}

struct Running(Panics, u32);

impl Future for Running {
    type Output = Result<(), BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.1 += 1;
        match (self.0, self.1) {
            (PolledFirst, _) | (PolledLater, 3) => panic!("in a poll"),
            (Dropped, _) => Poll::Ready(Ok(())),
            (Displayed, _) => Poll::Ready(Err(Box::new(Spiteful))),
            _ => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let panics = matches!(self.0, Dropped) && !std::thread::panicking();
        assert!(!panics, "in the drop");
    }
}

fn assert_counted(entry: &Entry, attempt: u16, panics: Panics) {
    let seen = (entry.state(), entry.attempt(), entry.is_released());
    assert_eq!(seen, (State::Retrying, attempt, false), "{panics:?}");
    let error = entry.error().unwrap_or_default();
    assert!(error.starts_with("the handler panicked"), "{panics:?}: {error}");
}

#[tokio::test(start_paused = true)]
async fn a_handlers_panic_is_the_error_of_a_failed_attempt_and_tells_its_message() {
    for (panics, message) in HANDLERS {
        let world = World::new();
        let called = world.layer().layer(panics).run("p-1").await;
        let failed = failed(&called);
        assert_eq!(failed.disposition, Disposition::Retry { after: None }, "{panics:?}");
        assert_eq!(failed.source.downcast_ref::<Panicked>().unwrap().message(), message);
        let entry = world.entry("p-1").unwrap();
        assert_counted(&entry, 1, panics);
        assert_eq!(entry.error().unwrap(), format!("the handler panicked: {message}"));
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_panic_means_can_be_classified() {
    let world = World::new();
    let by_panic = classify::on(|panicked: &Panicked| {
        assert_eq!(panicked.message(), "in a poll");
        Disposition::DeadLetter
    });
    let called = world.layer().with_classifier(by_panic).layer(PolledLater).run("p-1").await;
    assert_eq!(failed(&called).disposition, Disposition::DeadLetter);
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_the_answer_is_a_failed_attempt_and_frees_the_lock() {
    for panics in LATE {
        let world = World::new();
        let call = world.layer().layer(panics).start(request("p-1"));
        assert!(call.await.unwrap_err().is_panic(), "{panics:?}");
        settle_down().await;
        assert_counted(&world.entry("p-1").unwrap(), 1, panics);
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_counts_although_somebody_above_catches_it() {
    for panics in LATE {
        let world = World::new();
        let service = world.layer().layer(panics);
        let mut call = Box::pin(AssertUnwindSafe(service.oneshot(request("p-1"))).catch_unwind());
        assert!(call.as_mut().await.is_err(), "{panics:?}");
        // Nobody panics any more when it is dropped.
        drop(call);
        settle_down().await;
        assert_counted(&world.entry("p-1").unwrap(), 1, panics);
        world.assert_quiet().await;
    }
}

/// Else a record that panics while a rebalance runs would never come to its end.
#[tokio::test(start_paused = true)]
async fn a_panic_counts_although_the_record_is_interrupted() {
    for panics in all() {
        let world = World::new();
        let request = request("p-1");
        let record = request.record().clone();
        record.set_interrupted();
        drop(world.layer().layer(panics).start(request).await);
        record.let_go().await;
        assert_counted(&world.entry("p-1").unwrap(), 1, panics);
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_always_panics_comes_to_its_end() {
    for panics in all() {
        let world = World::new();
        let service = world.layer().with_max_attempts(3).unwrap().layer(panics);
        for attempt in 1..=3 {
            drop(service.start(request("p-1")).await);
            settle_down().await;
            assert_counted(&world.entry("p-1").unwrap(), attempt, panics);
            sleep(TTL).await;
        }
        let called = service.run("p-1").await;
        assert!(matches!(refusal(&called), IdempotencyError::Exhausted(_)), "{panics:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_permit_back_and_the_next_record_goes_on() {
    for panics in all() {
        let world = World::new();
        let service =
            ServiceBuilder::new().layer(world.layer()).concurrency_limit(1).service(panics);
        for number in 0..3 {
            let call = service.start(request(&format!("p-{number}")));
            let ended = timeout(TTL, call).await.expect("a permit is there");
            assert!(
                ended.is_err_and(|e| e.is_panic())
                    != matches!(panics, Called | PolledFirst | PolledLater)
            );
        }
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_makes_the_classifier_panic_is_tried_again() {
    let world = World::new();
    let layer = world.layer();
    let layer = layer.with_classifier(|_: &(dyn Error + 'static)| panic!("in the classifier"));
    let service =
        layer.layer(service_fn(async |_: Request<()>| Err::<(), BoxError>("gateway busy".into())));
    let called = service.run("p-1").await;
    let IdempotencyError::Failed(failed) = refusal(&called) else {
        panic!("failed");
    };
    assert_eq!(failed.disposition, Disposition::Retry { after: None });
    assert!(failed.retry_after.is_some());
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_takes_nobody_with_it() {
    let world = World::new();
    let (service, mut stage) = world.staged(world.layer());
    let call = service.start(request("p-1"));
    let (_, respond) = stage.next_request().await.unwrap();
    world.store.always(Fault::Panic);
    assert!(matches!(refusal(&service.run("p-2").await), IdempotencyError::Store(_)));
    sleep(TTL / 2).await;
    world.store.heal();
    respond.send_response("done");
    assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    world.assert_quiet().await;
}
