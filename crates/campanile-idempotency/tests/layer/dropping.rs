//! The response future dropped at every await, for every outcome, with every fault of the store.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, Entry, Outcome, Request, State, error};
use campanile_idempotency::IdempotencyError;
use campanile_idempotency::policy::{OnAbandoned, OnLocked};
use campanile_test::faults::Fault;
use futures_util::FutureExt;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tower::load_shed::error::Overloaded;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{Guarding, HOUR, TestLayer, World, lock, request};

/// The layer's default.
const MAX_HOLD: Duration = Duration::from_secs(10 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Succeeds,
    Fails,
    FailsForGood,
    Panics,
    Hangs,
    /// The key is COMPLETED.
    IsDuplicate,
    /// Somebody holds the key, whose attempt is then handed back.
    WaitsAndSucceeds,
    /// Somebody holds the key, and completes it.
    WaitsAndIsDuplicate,
}

use Case::{
    Fails, FailsForGood, Hangs, IsDuplicate, Panics, Succeeds, WaitsAndIsDuplicate,
    WaitsAndSucceeds,
};

const CASES: [Case; 8] = [
    Succeeds,
    Fails,
    FailsForGood,
    Panics,
    Hangs,
    IsDuplicate,
    WaitsAndSucceeds,
    WaitsAndIsDuplicate,
];

/// What happens to the first call for each operation.
const FAULTS: [Option<Fault>; 5] =
    [None, Some(Fault::LoseReply), Some(Fault::Refuse), Some(Fault::Hang), Some(Fault::HangReply)];

/// When the future is dropped.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// After so many polls.
    polls: usize,
    /// Not at once, but when it would be polled again: others have done something meanwhile.
    woken: bool,
}

/// How far the handler got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Handler {
    #[default]
    NotBegun,
    Works,
    Panicked,
    Ended,
    /// Dropped while it worked.
    Dropped,
}

struct Trace(Arc<Mutex<Handler>>);

impl Trace {
    fn note(&self, handler: Handler) {
        *self.0.lock().unwrap() = handler;
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut handler = self.0.lock().unwrap();
        if *handler == Handler::Works {
            *handler = Handler::Dropped;
        }
    }
}

async fn handle(case: Case, trace: Trace) -> Result<(), BoxError> {
    trace.note(Handler::Works);
    yield_now().await;
    sleep(Duration::from_secs(1)).await;
    match case {
        Panics => {
            trace.note(Handler::Panicked);
            // As a panic, but for the message.
            resume_unwind(Box::new("as it was told to"))
        }
        Hangs => pending().await,
        Fails => {
            trace.note(Handler::Ended);
            Err("gateway busy".into())
        }
        FailsForGood => {
            trace.note(Handler::Ended);
            Err(error::permanent("no such account").into())
        }
        _ => {
            trace.note(Handler::Ended);
            Ok(())
        }
    }
}

/// Polls a future until it is cut; says whether it ended before.
async fn cut<T>(future: impl Future<Output = T>, cut: Cut) -> bool {
    let future = AssertUnwindSafe(future).catch_unwind();
    let mut future: Option<Pin<Box<_>>> = Some(Box::pin(future));
    let mut polls = 0;
    poll_fn(|cx| {
        if polls < cut.polls {
            polls += 1;
            if let Some(Poll::Ready(_)) = future.as_mut().map(|future| future.as_mut().poll(cx)) {
                return Poll::Ready(true);
            }
            if polls < cut.polls || cut.woken {
                return Poll::Pending;
            }
        }
        future = None;
        Poll::Ready(false)
    })
    .await
}

/// All that makes one run.
#[derive(Clone, Copy, Debug)]
struct Run {
    case: Case,
    fault: Option<Fault>,
    interrupted: bool,
    abandoned: OnAbandoned,
    cut: Cut,
}

impl Run {
    /// Says whether the future ended before it was cut.
    async fn run(self) -> bool {
        let world = World::new();
        let at_most = Duration::from_secs(60);
        let layer =
            world.layer().with_locked(OnLocked::Wait { at_most }).with_abandoned(self.abandoned);
        self.prepare(&world, &layer).await;
        for operation in ["acquire", "cancel", "complete", "fail", "release"] {
            if let Some(fault) = self.fault {
                world.store.next_of(operation, fault);
            }
        }

        let handler = Arc::new(Mutex::new(Handler::NotBegun));
        let traced = handler.clone();
        let service =
            layer.layer(service_fn(move |_: Request<()>| handle(self.case, Trace(traced.clone()))));
        let request = request("p-1");
        let record = request.record().clone();
        if self.interrupted {
            record.set_interrupted();
        }
        let ended = cut(service.oneshot(request), self.cut).await;
        let handler = *handler.lock().unwrap();
        assert_ne!(handler, Handler::Works, "the handler lives on");
        let lost = world.clock.elapsed() >= MAX_HOLD;

        timeout(HOUR, record.let_go()).await.expect("the record is let go");
        self.assert_others_ended(&world).await;
        let entry = world.entry("p-1");
        self.assert_entry(entry.as_ref(), handler, lost);
        self.assert_goes_on(&world, entry.as_ref()).await;
        world.assert_quiet().await;
        ended
    }

    async fn prepare(self, world: &World, layer: &TestLayer) {
        let (case, holds) = (self.case, Duration::from_secs(3));
        let first = layer.layer(service_fn(move |_: Request<()>| async move {
            match case {
                IsDuplicate => Ok(()),
                WaitsAndIsDuplicate => {
                    sleep(holds).await;
                    Ok(())
                }
                _ => {
                    sleep(holds).await;
                    Err::<_, BoxError>(Overloaded::new().into())
                }
            }
        }));
        match case {
            IsDuplicate => drop(first.run("p-1").await.unwrap()),
            WaitsAndSucceeds | WaitsAndIsDuplicate => {
                drop(first.start(request("p-1")));
                while world.state("p-1") != Some(State::Processing) {
                    yield_now().await;
                }
            }
            _ => {}
        }
    }

    /// Whoever held the key has not noticed anything.
    async fn assert_others_ended(self, world: &World) {
        if matches!(self.case, WaitsAndSucceeds | WaitsAndIsDuplicate) {
            sleep(Duration::from_secs(60)).await;
            let expected = match self.case {
                WaitsAndIsDuplicate => State::Completed,
                _ if world.entry("p-1").unwrap().state() == State::Completed => State::Completed,
                _ => State::Retrying,
            };
            assert_eq!(world.state("p-1"), Some(expected));
        }
    }

    fn assert_entry(self, entry: Option<&Entry>, handler: Handler, lost: bool) {
        let Some(entry) = entry else {
            assert_eq!(handler, Handler::NotBegun);
            return;
        };
        let seen = (entry.state(), entry.attempt(), entry.interrupts());
        let error = entry.error().unwrap_or_default().into_owned();
        let handed_back = self.interrupted || self.abandoned == OnAbandoned::Release;
        let expected = match (handler, self.case) {
            (_, IsDuplicate | WaitsAndIsDuplicate) => (State::Completed, 1, 0),
            (Handler::NotBegun, _) => (State::Retrying, 0, 0),
            (Handler::Ended, Succeeds | WaitsAndSucceeds) => (State::Completed, 1, 0),
            (Handler::Ended | Handler::Panicked, _) => (State::Retrying, 1, 0),
            (Handler::Dropped, _) if lost => (State::Retrying, 1, 0),
            (Handler::Dropped, _) if handed_back => (State::Retrying, 0, 1),
            (Handler::Dropped, _) if self.abandoned == OnAbandoned::Expire => {
                (State::Processing, 1, 0)
            }
            (Handler::Dropped, _) => (State::Retrying, 1, 0),
            (Handler::Works, _) => unreachable!("it was dropped"),
        };
        assert_eq!(seen, expected, "{error}");
        assert_eq!(entry.is_doomed(), (handler, self.case) == (Handler::Ended, FailsForGood));
        let expected = match handler {
            Handler::Panicked => "the handler panicked: as it was told to",
            Handler::Dropped if lost => "held longer than `max_hold`",
            Handler::Dropped if entry.is_released() || entry.state() == State::Processing => "",
            Handler::Dropped => "dropped before it completed, for example by a timeout",
            Handler::Ended if self.case == Fails => "gateway busy",
            Handler::Ended if self.case == FailsForGood => "permanent error: no such account",
            _ => "",
        };
        assert_eq!(error, expected);
    }

    /// The next delivery gets what the entry says.
    async fn assert_goes_on(self, world: &World, before: Option<&Entry>) {
        world.store.heal(); // of faults that were not met
        sleep(HOUR).await; // a lock may have to expire, a back-off to pass
        let service = world.layer().layer(service_fn(async |request: Request<()>| {
            Ok::<_, BoxError>(lock(&request).attempt())
        }));
        let called = service.run("p-1").await;
        match before {
            Some(entry) if entry.state() == State::Completed => {
                assert!(called.unwrap().is_duplicate());
            }
            Some(entry) if entry.is_doomed() => {
                let error = called.unwrap_err();
                let error = IdempotencyError::find(&*error);
                assert!(matches!(error, Some(IdempotencyError::Exhausted(_))), "{error:?}");
            }
            entry => {
                let attempts = entry.map_or(0, Entry::attempt);
                let next = Outcome::Processed(u32::from(attempts) + 1);
                assert_eq!(called.unwrap(), next);
            }
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Cuts at every poll there is, and then not at all.
async fn all_cuts(run: impl Fn(Cut) -> Run) -> usize {
    let mut runs = 0;
    for woken in [false, true] {
        for polls in 0.. {
            let run = run(Cut { polls, woken });
            let outcome = AssertUnwindSafe(run.run()).catch_unwind().await;
            runs += 1;
            match outcome {
                Ok(true) => break,
                Ok(false) => assert!(polls < 100, "{run} has no end"),
                Err(_) => panic!("{run}"),
            }
        }
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn a_future_can_be_dropped_at_every_await_whatever_the_outcome_and_the_store() {
    let mut runs = 0;
    for case in CASES {
        for fault in FAULTS {
            for interrupted in [false, true] {
                let abandoned = OnAbandoned::Fail;
                runs += all_cuts(|cut| Run { case, fault, interrupted, abandoned, cut }).await;
            }
        }
    }
    println!("{runs} runs");
    assert!(runs > 500, "{runs} runs: the futures have fewer awaits than there are");
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_future_comes_to_is_a_choice() {
    for abandoned in [OnAbandoned::Release, OnAbandoned::Expire] {
        for case in [Succeeds, Hangs, Panics] {
            for interrupted in [false, true] {
                let fault = None;
                all_cuts(|cut| Run { case, fault, interrupted, abandoned, cut }).await;
            }
        }
    }
}
