//! Handlers that end in every way, at every time, over a store with faults.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use campanile_core::{Request, State};
use campanile_test::faults::Fault;
use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

use super::{Observing, at, counted};
use crate::harness::{HOUR, TestService, request, run_until_idle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Succeeds,
    Fails,
    Panics,
    Hangs,
}

const CASES: [Case; 4] = [Case::Succeeds, Case::Fails, Case::Panics, Case::Hangs];

const FAULTS: [Option<Fault>; 5] =
    [None, Some(Fault::LoseReply), Some(Fault::Refuse), Some(Fault::Hang), Some(Fault::HangReply)];

/// The time that the handler takes.
const SECOND: Duration = Duration::from_secs(1);

async fn handle(case: Case) -> Result<&'static str, &'static str> {
    yield_now().await;
    sleep(SECOND).await;
    match case {
        Case::Succeeds => Ok("done"),
        Case::Fails => Err("busy"),
        // Like a panic, but without the printed message.
        Case::Panics => resume_unwind(Box::new("test panic")),
        Case::Hangs => pending().await,
    }
}

/// How the future ended: with the handler's result or panic, or dropped.
type Ended = Option<Result<Result<&'static str, &'static str>, String>>;

/// Polls a future at most this many times, with other tasks in between, then drops it.
async fn poll_at_most(
    polls: usize,
    future: impl Future<Output = Result<&'static str, &'static str>>,
) -> Ended {
    let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
    let mut count = 0;
    std::future::poll_fn(|cx| {
        if count == polls {
            return std::task::Poll::Ready(None);
        }
        count += 1;
        let polled = future.poll_unpin(cx);
        let text =
            |panic: Box<dyn std::any::Any + Send>| panic.downcast::<&str>().unwrap().to_string();
        if count == polls {
            cx.waker().wake_by_ref();
        }
        polled.map(|ended| Some(ended.map_err(text)))
    })
    .await
}

async fn check(case: Case, fault: Option<Fault>, interrupted: bool, polls: usize) -> bool {
    let what = format!("{case:?}, {fault:?}, interrupted: {interrupted}, {polls} polls");
    let observing = Observing::new();
    for operation in ["acquire", "cancel", "complete", "fail", "release"] {
        if let Some(fault) = fault {
            observing.harness.store.inject_next_of(operation, fault);
        }
    }
    let service = observing.layer.layer(service_fn(move |_: Request<()>| handle(case)));
    let (request, start) = (request("p-1"), Instant::now());
    let record = request.record().clone();
    if interrupted {
        record.attempt().set_interrupted();
    }
    let ended = poll_at_most(polls, service.oneshot(request)).await;
    // The driver waits for nothing.
    assert!(record.attempt().lock_released().now_or_never().is_some(), "{what}");
    match &ended {
        Some(ended) => {
            let expected = match case {
                Case::Succeeds => Ok(Ok("done")),
                Case::Fails => Ok(Err("busy")),
                Case::Panics => Err("test panic".to_owned()),
                Case::Hangs => unreachable!("never ends"),
            };
            assert_eq!(*ended, expected, "{what}");
            assert!(start.elapsed() < 2 * SECOND, "{what}");
        }
        None => assert!(start.elapsed() < 2 * SECOND, "{what}"),
    }
    sleep(60 * SECOND).await;
    observing.harness.store.heal();
    sleep(HOUR).await;
    let entry = observing.harness.entry("p-1");
    let seen = entry.as_ref().map(|entry| (entry.state(), entry.attempt(), entry.interrupts()));
    let is_observed = fault.is_none() && polls > 0;
    let expected = match (&ended, case) {
        (Some(_), Case::Succeeds) => (State::Completed, 1, 0),
        (None, _) if interrupted => (State::Retrying, 0, 1),
        _ => (State::Retrying, 1, 0),
    };
    if is_observed {
        assert_eq!(seen, Some(expected), "{what}");
    }
    // A verdict, and no more than one; and no lock is left.
    let verdicts = observing.verdicts().await;
    assert_eq!(verdicts.values().sum::<u64>(), u64::from(polls > 0), "{what}: {verdicts:?}");
    assert_ne!(observing.state("p-1"), Some(State::Processing), "{what}");
    observing.harness.assert_settled().await;
    ended.is_some()
}

#[tokio::test(start_paused = true)]
async fn future_can_be_dropped_at_every_await() {
    let mut runs = 0;
    for case in CASES {
        for fault in FAULTS {
            for interrupted in [false, true] {
                // A handler that hangs is not polled again after the third time.
                let at_most = if case == Case::Hangs { 3 } else { 4 };
                for polls in 0..=at_most {
                    runs += 1;
                    if check(case, fault, interrupted, polls).await {
                        break;
                    }
                }
            }
        }
    }
    assert!(runs > 120, "{runs}");
}

#[tokio::test(start_paused = true)]
async fn handler_starts_before_the_store_answers() {
    let observing = Observing::new();
    observing.harness.store.inject_always(Fault::Hang);
    let start = Instant::now();
    let service = observing.layer.layer(service_fn(async |_: Request<()>| Ok::<_, String>("done")));
    // Without a wait: one poll is enough.
    assert_eq!(service.oneshot(at("p-1", 0)).now_or_never(), Some(Ok("done")));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(observing.verdicts().await, counted([]));
    sleep(10 * SECOND).await;
    assert_eq!(observing.verdicts().await, counted([("unavailable", 1)]));
}

#[tokio::test(start_paused = true)]
async fn outcome_is_recorded_although_the_handler_ended_first() {
    let observing = Observing::new();
    observing.harness.store.inject_next_of("acquire", Fault::Slow(SECOND));
    assert_eq!(observing.run("p-1", 7).await.unwrap(), "done");
    run_until_idle().await;
    assert_eq!(observing.state("p-1"), Some(State::Processing));
    sleep(2 * SECOND).await;
    assert_eq!(observing.state("p-1"), Some(State::Completed));
    let (guard, _handler) = observing.harness.mock_service(observing.harness.layer());
    assert!(guard.run("p-1").await.unwrap().is_duplicate());
}

/// Otherwise the entry would be missing, or look as if its last run had never ended.
#[tokio::test(start_paused = true)]
async fn success_is_recorded_once_the_store_answers() {
    for fault in [Fault::LoseReply, Fault::Refuse, Fault::Hang, Fault::HangReply, Fault::Panic] {
        let observing = Observing::new();
        observing.harness.store.inject_next_of("acquire", fault);
        assert_eq!(observing.run("p-1", 7).await.unwrap(), "done");
        sleep(60 * SECOND).await;
        assert_eq!(observing.verdicts().await, counted([("unavailable", 1)]), "{fault:?}");
        let entry = observing.harness.entry("p-1").expect("an entry");
        assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1), "{fault:?}");
        observing.harness.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failure_in_an_outage_is_not_recorded_later() {
    let observing = Observing::new();
    observing.harness.store.inject_next_of("acquire", Fault::Refuse);
    observing.fail("p-1").await;
    sleep(HOUR).await;
    assert_eq!(observing.verdicts().await, counted([("unavailable", 1)]));
    assert_eq!(observing.state("p-1"), None);
}

#[tokio::test(start_paused = true)]
async fn outage_leaves_room_for_later_observations() {
    let observing = Observing::new();
    observing.harness.store.inject_always(Fault::Refuse);
    for number in 0..5000 {
        observing.run(&number.to_string(), number).await.unwrap();
        yield_now().await;
    }
    assert_eq!(observing.verdicts().await, counted([("unavailable", 5000)]));
    sleep(120 * SECOND).await;
    // The waiting ones send their acquires again, and no more often than every 5 s.
    let sent = observing.harness.store.count("acquire");
    assert!(sent < 5000 + 2100 * 24, "{sent}");
    observing.harness.store.heal();
    observing.run("p-1", 0).await.unwrap();
    assert_eq!(observing.verdicts().await, counted([("first", 1), ("unavailable", 5000)]));
    assert_eq!(observing.state("p-1"), Some(State::Completed));
    sleep(HOUR).await;
    let is_completed = |number: &i32| observing.state(&number.to_string()).is_some();
    let completed = (0..5000).filter(is_completed).count();
    assert!((2000..2100).contains(&completed), "{completed}");
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_call_is_recorded_and_continues() {
    let observing = Observing::new();
    let service = observing.layer.layer(service_fn(
        |_: Request<()>| -> std::future::Ready<Result<(), String>> {
            resume_unwind(Box::new("test panic"))
        },
    ));
    let panicked = AssertUnwindSafe(service.oneshot(at("p-1", 0))).catch_unwind().await;
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"test panic"));
    run_until_idle().await;
    let entry = observing.harness.entry("p-1").unwrap();
    assert_eq!(
        (entry.state(), entry.error().as_deref()),
        (State::Retrying, Some("the handler panicked"))
    );
}

#[test]
fn request_without_a_runtime_is_let_through() {
    let store = campanile_idempotency::MemoryStore::new();
    let observer = campanile_idempotency::Observer::new(store, "payments").unwrap();
    let ran = observer.run("p-1", None, async || Ok::<_, String>("done"));
    assert_eq!(ran.now_or_never(), Some(Ok("done")));
}

#[tokio::test(start_paused = true)]
async fn observation_that_never_begins_is_reported() {
    let observing = Observing::new();
    let observer = observing.observer.clone();
    let ran = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // The handler does not wait, so the runtime ends before the observation's task is polled.
        runtime.block_on(observer.run("p-1", None, async || Ok::<_, String>("done")))
    });
    assert_eq!(ran.join().unwrap(), Ok("done"));
    assert_eq!(observing.verdicts().await, counted([("not_observed", 1)]));
}
