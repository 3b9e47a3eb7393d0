//! The response future is dropped at every await, for every outcome and every fault of the store.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, Entry, Outcome, Request, State, error};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::{OnDropped, OnLocked};
use campanile_test::faults::Fault;
use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tower::load_shed::error::Overloaded;
use tower::{Layer, ServiceExt, service_fn};

use crate::harness::{HOUR, Harness, TestLayer, TestService, lock, request};

/// The layer's default `max_hold`.
const MAX_HOLD: Duration = Duration::from_secs(10 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Succeeds,
    Fails,
    FailsPermanently,
    Panics,
    Hangs,
    /// The key is COMPLETED.
    IsDuplicate,
    /// Another request holds the key. Its attempt is then uncounted.
    WaitsAndSucceeds,
    /// Another request holds the key and completes it.
    WaitsAndIsDuplicate,
}

use Case::{
    Fails, FailsPermanently, Hangs, IsDuplicate, Panics, Succeeds, WaitsAndIsDuplicate,
    WaitsAndSucceeds,
};

const CASES: [Case; 8] = [
    Succeeds,
    Fails,
    FailsPermanently,
    Panics,
    Hangs,
    IsDuplicate,
    WaitsAndSucceeds,
    WaitsAndIsDuplicate,
];

/// What happens to the first call of each operation.
const FAULTS: [Option<Fault>; 5] =
    [None, Some(Fault::LoseReply), Some(Fault::Refuse), Some(Fault::Hang), Some(Fault::HangReply)];

/// When the future is dropped.
#[derive(Clone, Copy, Debug)]
struct DropPoint {
    /// The number of polls before the drop.
    polls: usize,
    /// Whether to drop the future when it would be polled again, after other tasks have run, and
    /// not at once.
    woken: bool,
}

/// How far the handler got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HandlerProgress {
    #[default]
    NotStarted,
    Running,
    Panicked,
    Finished,
    /// Dropped while it was running.
    Dropped,
}

struct Trace(Arc<Mutex<HandlerProgress>>);

impl Trace {
    fn set(&self, handler: HandlerProgress) {
        *self.0.lock().unwrap() = handler;
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut handler = self.0.lock().unwrap();
        if *handler == HandlerProgress::Running {
            *handler = HandlerProgress::Dropped;
        }
    }
}

async fn handle(case: Case, trace: Trace) -> Result<(), BoxError> {
    trace.set(HandlerProgress::Running);
    yield_now().await;
    sleep(Duration::from_secs(1)).await;
    match case {
        Panics => {
            trace.set(HandlerProgress::Panicked);
            // Like a panic, but without the printed message.
            resume_unwind(Box::new("test panic"))
        }
        Hangs => pending().await,
        Fails => {
            trace.set(HandlerProgress::Finished);
            Err("gateway busy".into())
        }
        FailsPermanently => {
            trace.set(HandlerProgress::Finished);
            Err(error::permanent("no such account").into())
        }
        _ => {
            trace.set(HandlerProgress::Finished);
            Ok(())
        }
    }
}

/// Polls a future until it is dropped, and checks whether it completed before.
async fn poll_until_dropped<T>(future: impl Future<Output = T>, drop_point: DropPoint) -> bool {
    let future = AssertUnwindSafe(future).catch_unwind();
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(future));
    let mut polls = 0;
    poll_fn(|cx| {
        if polls < drop_point.polls {
            polls += 1;
            if let Some(Poll::Ready(_)) = future.as_mut().map(|future| future.as_mut().poll(cx)) {
                return Poll::Ready(true);
            }
            if polls < drop_point.polls || drop_point.woken {
                return Poll::Pending;
            }
        }
        future = None;
        Poll::Ready(false)
    })
    .await
}

/// The parameters of one run.
#[derive(Clone, Copy, Debug)]
struct Run {
    case: Case,
    fault: Option<Fault>,
    interrupted: bool,
    abandoned: OnDropped,
    drop_point: DropPoint,
}

impl Run {
    /// Checks whether the future completes before it is dropped.
    async fn run(self) -> bool {
        let harness = Harness::new();
        let at_most = Duration::from_secs(60);
        let layer =
            harness.layer().on_locked(OnLocked::Wait { at_most }).on_dropped(self.abandoned);
        self.prepare(&harness, &layer).await;
        for operation in ["acquire", "cancel", "complete", "fail", "release"] {
            if let Some(fault) = self.fault {
                harness.store.inject_next_of(operation, fault);
            }
        }

        let handler = Arc::new(Mutex::new(HandlerProgress::NotStarted));
        let traced = handler.clone();
        let service =
            layer.layer(service_fn(move |_: Request<()>| handle(self.case, Trace(traced.clone()))));
        let request = request("p-1");
        let record = request.record().clone();
        if self.interrupted {
            record.attempt().set_interrupted();
        }
        let has_finished = poll_until_dropped(service.oneshot(request), self.drop_point).await;
        let handler = *handler.lock().unwrap();
        assert_ne!(handler, HandlerProgress::Running, "the handler is still running");
        let is_lost = harness.clock.elapsed() >= MAX_HOLD;

        timeout(HOUR, record.attempt().lock_released()).await.expect("the record is released");
        self.assert_others_ended(&harness).await;
        let entry = harness.entry("p-1");
        self.assert_entry(entry.as_ref(), handler, is_lost);
        self.assert_next_delivery(&harness, entry.as_ref()).await;
        harness.assert_settled().await;
        has_finished
    }

    async fn prepare(self, harness: &Harness, layer: &TestLayer) {
        let (case, hold_time) = (self.case, Duration::from_secs(3));
        let first = layer.layer(service_fn(move |_: Request<()>| async move {
            match case {
                IsDuplicate => Ok(()),
                WaitsAndIsDuplicate => {
                    sleep(hold_time).await;
                    Ok(())
                }
                _ => {
                    sleep(hold_time).await;
                    Err::<_, BoxError>(Overloaded::new().into())
                }
            }
        }));
        match case {
            IsDuplicate => drop(first.run("p-1").await.unwrap()),
            WaitsAndSucceeds | WaitsAndIsDuplicate => {
                drop(first.start(request("p-1")));
                while harness.state("p-1") != Some(State::Processing) {
                    yield_now().await;
                }
            }
            _ => {}
        }
    }

    /// Asserts that the other holder of the key was not affected.
    async fn assert_others_ended(self, harness: &Harness) {
        if matches!(self.case, WaitsAndSucceeds | WaitsAndIsDuplicate) {
            sleep(Duration::from_secs(60)).await;
            let expected = match self.case {
                WaitsAndIsDuplicate => State::Completed,
                _ if harness.entry("p-1").unwrap().state() == State::Completed => State::Completed,
                _ => State::Retrying,
            };
            assert_eq!(harness.state("p-1"), Some(expected));
        }
    }

    fn assert_entry(self, entry: Option<&Entry>, handler: HandlerProgress, is_lost: bool) {
        let Some(entry) = entry else {
            assert_eq!(handler, HandlerProgress::NotStarted);
            return;
        };
        let seen = (entry.state(), entry.attempt(), entry.interrupts());
        let error = entry.error().unwrap_or_default().into_owned();
        let is_uncounted = self.interrupted || self.abandoned == OnDropped::Release;
        let expected = match (handler, self.case) {
            (_, IsDuplicate | WaitsAndIsDuplicate) => (State::Completed, 1, 0),
            (HandlerProgress::NotStarted, _) => (State::Retrying, 0, 0),
            (HandlerProgress::Finished, Succeeds | WaitsAndSucceeds) => (State::Completed, 1, 0),
            (HandlerProgress::Finished | HandlerProgress::Panicked, _) => (State::Retrying, 1, 0),
            (HandlerProgress::Dropped, _) if is_lost => (State::Retrying, 1, 0),
            (HandlerProgress::Dropped, _) if is_uncounted => (State::Retrying, 0, 1),
            (HandlerProgress::Dropped, _) if self.abandoned == OnDropped::Expire => {
                (State::Processing, 1, 0)
            }
            (HandlerProgress::Dropped, _) => (State::Retrying, 1, 0),
            (HandlerProgress::Running, _) => unreachable!("the handler was dropped"),
        };
        assert_eq!(seen, expected, "{error}");
        assert_eq!(
            entry.has_permanent_failure(),
            (handler, self.case) == (HandlerProgress::Finished, FailsPermanently)
        );
        let expected = match handler {
            HandlerProgress::Panicked => "the handler panicked: test panic",
            HandlerProgress::Dropped if is_lost => "held longer than `max_hold`",
            HandlerProgress::Dropped
                if entry.is_released() || entry.state() == State::Processing =>
            {
                ""
            }
            HandlerProgress::Dropped => "dropped before it completed, for example by a timeout",
            HandlerProgress::Finished if self.case == Fails => "gateway busy",
            HandlerProgress::Finished if self.case == FailsPermanently => {
                "permanent error: no such account"
            }
            _ => "",
        };
        assert_eq!(error, expected);
    }

    /// Asserts that the next delivery gets the result that follows from the entry.
    async fn assert_next_delivery(self, harness: &Harness, before: Option<&Entry>) {
        harness.store.heal(); // removes the faults that did not occur
        sleep(HOUR).await; // a lock may have to expire, or a backoff to end
        let service = harness.layer().layer(service_fn(async |request: Request<()>| {
            Ok::<_, BoxError>(lock(&request).attempt())
        }));
        let result = service.run("p-1").await;
        match before {
            Some(entry) if entry.state() == State::Completed => {
                assert!(result.unwrap().is_duplicate());
            }
            Some(entry) if entry.has_permanent_failure() => {
                let error = result.unwrap_err();
                let error = IdempotencyError::find(&*error);
                assert!(matches!(error, Some(IdempotencyError::Exhausted(_))), "{error:?}");
            }
            entry => {
                let attempts = entry.map_or(0, Entry::attempt);
                let next = Outcome::Processed(u32::from(attempts) + 1);
                assert_eq!(result.unwrap(), next);
            }
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Drops the future after every poll, and finally lets it complete.
async fn run_all_drop_points(run: impl Fn(DropPoint) -> Run) -> usize {
    let mut runs = 0;
    for woken in [false, true] {
        for polls in 0.. {
            let run = run(DropPoint { polls, woken });
            let outcome = AssertUnwindSafe(run.run()).catch_unwind().await;
            runs += 1;
            match outcome {
                Ok(true) => break,
                Ok(false) => assert!(polls < 100, "{run} does not end"),
                Err(_) => panic!("{run}"),
            }
        }
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn future_can_be_dropped_at_every_await() {
    let mut runs = 0;
    for case in CASES {
        for fault in FAULTS {
            for interrupted in [false, true] {
                let abandoned = OnDropped::Fail;
                runs += run_all_drop_points(|drop_point| Run {
                    case,
                    fault,
                    interrupted,
                    abandoned,
                    drop_point,
                })
                .await;
            }
        }
    }
    println!("{runs} runs");
    assert!(runs > 500, "{runs} runs: some awaits were not reached");
}

#[tokio::test(start_paused = true)]
async fn abandoned_policy_decides_about_dropped_future() {
    for abandoned in [OnDropped::Release, OnDropped::Expire] {
        for case in [Succeeds, Hangs, Panics] {
            for interrupted in [false, true] {
                let fault = None;
                run_all_drop_points(|drop_point| Run {
                    case,
                    fault,
                    interrupted,
                    abandoned,
                    drop_point,
                })
                .await;
            }
        }
    }
}
