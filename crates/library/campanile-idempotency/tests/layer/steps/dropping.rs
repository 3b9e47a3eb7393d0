//! The response future is dropped, or its process crashes, at every await of a handler with steps.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use campanile_core::{BoxError, LockHandle, Request, State};
use campanile_test::faults::Fault;
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::service;
use crate::harness::{HOUR, Harness, TestService, lock, request};

const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// What happens to the first call that records a step.
const FAULTS: [Option<Fault>; 5] =
    [None, Some(Fault::LoseReply), Some(Fault::Refuse), Some(Fault::Hang), Some(Fault::HangReply)];

/// What the steps of one key have done.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The step has run, with this number as its result.
    Ran(&'static str, usize),
    /// The handler was given this result.
    Returned(&'static str, usize),
}

impl Log {
    fn add(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    async fn handle(self, lock: LockHandle) -> Result<(), BoxError> {
        for name in STEPS {
            yield_now().await;
            let step = lock.step(name, async || {
                sleep(Duration::from_millis(10)).await;
                let run = self.0.lock().unwrap().len();
                self.add(Event::Ran(name, run));
                yield_now().await;
                Ok::<_, BoxError>(run)
            });
            let result = step.await?;
            self.add(Event::Returned(name, result));
        }
        yield_now().await;
        Ok(())
    }

    /// Checks that no step has run after its result was returned, and that each had one result.
    fn assert_run_once_when_recorded(&self) {
        let events = self.0.lock().unwrap();
        for name in STEPS {
            let mut returned = None;
            for event in events.iter() {
                match *event {
                    Event::Ran(step, _) if step == name => {
                        assert_eq!(returned, None, "{name} ran again: {events:?}");
                    }
                    Event::Returned(step, result) if step == name => {
                        let first = *returned.get_or_insert(result);
                        assert_eq!(result, first, "{name} has two results: {events:?}");
                    }
                    _ => {}
                }
            }
            assert!(returned.is_some(), "{name} never ended: {events:?}");
        }
    }

    fn runs(&self) -> usize {
        let events = self.0.lock().unwrap();
        events.iter().filter(|event| matches!(event, Event::Ran(..))).count()
    }
}

/// Polls the first attempt this often, drops it or crashes, and lets others finish. Returns whether the
/// first attempt ended before, and how often a step ran.
async fn run(polls: usize, fault: Option<Fault>, crashes: bool) -> (bool, usize) {
    let mut harness = Harness::new();
    let log = Log::default();
    if let Some(fault) = fault {
        harness.store.inject_next_of("record_step", fault);
    }
    let handle = |log: &Log| {
        let log = log.clone();
        move |lock: LockHandle| log.clone().handle(lock)
    };
    let first = handle(&log);
    let first = service_fn(move |request: Request<()>| first(lock(&request)));
    let mut future = Some(Box::pin(harness.layer().layer(first).oneshot(request("p-1"))));
    let mut polled = 0;
    let has_ended = poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(false);
        }
        polled += 1;
        future.as_mut().unwrap().as_mut().poll(cx).map(|_| true)
    })
    .await;
    let next = harness.other_process();
    if crashes {
        harness.crash().await;
    }
    future = None;
    drop(future);
    harness.store.heal();
    sleep(HOUR).await;
    let second = service(&next.layer(), handle(&log));
    for _ in 0..3 {
        drop(second.run("p-1").await);
        sleep(HOUR).await;
    }
    assert_eq!(next.state("p-1"), Some(State::Completed));
    log.assert_run_once_when_recorded();
    (has_ended, log.runs())
}

#[tokio::test(start_paused = true)]
async fn recorded_step_runs_once_wherever_the_attempt_is_dropped() {
    let (mut points, mut repeated) = (0, 0);
    for fault in FAULTS {
        for crashes in [false, true] {
            for polls in 0.. {
                let (has_ended, runs) = run(polls, fault, crashes).await;
                points += 1;
                // One step may have been interrupted before its result was recorded.
                assert!((3..=4).contains(&runs), "{runs} runs");
                repeated += usize::from(runs == 4);
                if has_ended {
                    break;
                }
                assert!(polls < 100, "the handler does not end");
            }
        }
    }
    println!(
        "{points} points, {repeated} steps interrupted before their record; 0 run again after it"
    );
    assert!(points > 150 && repeated > 10, "{points}, {repeated}");
}
