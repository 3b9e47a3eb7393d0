//! A request, its handler and its caller.

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, FencingToken, Outcome, Record, Request, error};
use campanile_idempotency::{HeldLock, IdempotencyError};
use fastrand::Rng;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tower::load_shed::error::Overloaded;
use tower::util::BoxService;
use tower::{ServiceBuilder, ServiceExt};

use super::backend::Backend;
use super::plan::Plan;
use super::process::{SimulatedLayer, choose};
use super::{Environment, HOUR};
use crate::history::HistoryRecorder;

#[derive(Clone, Copy, Debug)]
enum HandlerEnd {
    Succeeds,
    Fails,
    FailsForGood,
    Skips,
    Stops,
    IsOverloaded,
    Panics,
    Hangs,
}

use HandlerEnd::{Fails, FailsForGood, Hangs, IsOverloaded, Panics, Skips, Stops, Succeeds};

/// What happens to a lock that was handed over.
#[derive(Clone, Copy, Debug)]
enum GiveUpEnd {
    GivesUp,
    Releases,
    /// Like a failed attempt, without dooming the key.
    GivesBack,
    Drops,
}

use GiveUpEnd::{Drops, GivesBack, GivesUp, Releases};

/// The random parameters of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) key: usize,
    handler_time: Duration,
    handler_end: HandlerEnd,
    /// The number of steps of the handler.
    steps: usize,
    /// When the record's turn comes, if it is started ahead of it.
    turn_after: Option<Duration>,
    /// When the future is dropped, if at all.
    drop_after: Option<Duration>,
    /// Whether that drop is an interruption.
    is_interrupted: bool,
    give_up_end: GiveUpEnd,
    give_up_time: Duration,
}

impl Script {
    pub(super) fn random(plan: &Plan, rng: &mut Rng) -> Self {
        let handler_end = [
            Succeeds,
            Succeeds,
            Succeeds,
            Fails,
            Fails,
            FailsForGood,
            Skips,
            Stops,
            IsOverloaded,
            Panics,
            Hangs,
        ];
        let time = |rng: &mut Rng| match rng.u8(..4) {
            0 => Duration::ZERO,
            1 => plan.ttl.mul_f64(rng.f64() * 4.0),
            _ => plan.ttl.mul_f64(rng.f64() / 4.0),
        };
        let handler_end = *choose(rng, &handler_end);
        // A hanging handler that is only notified of its lost lock would never end otherwise.
        let drop_after = match handler_end {
            Hangs => Some(plan.ttl * rng.u32(1..20)),
            _ => (rng.u8(..3) == 0).then(|| time(rng)),
        };
        Self {
            key: rng.usize(..plan.keys),
            handler_time: time(rng),
            handler_end,
            steps: if rng.bool() { 0 } else { rng.usize(1..=3) },
            turn_after: match rng.u8(..12) {
                0 => Some(plan.max_hold + time(rng)),
                1..4 => Some(time(rng)),
                _ => None,
            },
            drop_after,
            is_interrupted: rng.bool(),
            give_up_end: *choose(rng, &[GivesUp, Releases, GivesBack, Drops]),
            give_up_time: time(rng),
        }
    }

    pub(super) async fn run<B: Backend>(
        self,
        environment: Arc<Environment<B>>,
        stack: Stack,
        record: Record,
    ) {
        let env = environment.clone();
        let process = stack.process;
        let service = stack.service(move |request: Request| {
            let lock = request.lock().unwrap().clone();
            let work = env.handlers.start(process, &lock);
            let env = env.clone();
            async move {
                let _work = work;
                if !env.world.operations.has_granted(lock.store_key(), lock.token()) {
                    env.handlers.add_violation(format!("handler without a grant: {lock:?}"));
                }
                for number in 0..3 {
                    sleep(self.handler_time / 3).await;
                    env.handlers.check_locks();
                    if number < self.steps {
                        let name = number.to_string();
                        let run = async || -> Result<u64, BoxError> {
                            let result = env.handlers.run_step(&lock, &name);
                            sleep(self.handler_time / 10).await;
                            Ok(result)
                        };
                        let result = lock.step(&name, run).await?;
                        env.handlers.end_step(&lock, &name, result);
                    }
                }
                self.end(lock.token()).await
            }
        });
        if let Some(after) = self.turn_after {
            record.attempt().start(true);
            let record = record.clone();
            tokio::spawn(async move {
                sleep(after).await;
                record.attempt().begin_turn();
            });
        }
        let mut call = AssertUnwindSafe(service.oneshot(record.clone())).catch_unwind();
        let result = match self.drop_after {
            Some(after) => timeout(after, &mut call).await.ok(),
            None => Some((&mut call).await),
        };
        if self.is_interrupted {
            record.attempt().set_interrupted();
        }
        drop(call);
        if let Some(Ok(result)) = result {
            self.assert_matches_operations(&environment, &record, result).await;
        }
        let released = timeout(HOUR * 2, record.attempt().lock_released()).await;
        assert!(released.is_ok(), "the record is not released");
    }

    async fn end(self, token: FencingToken) -> Result<u64, BoxError> {
        match self.handler_end {
            Succeeds => Ok(token.get()),
            Fails => Err("gateway busy".into()),
            FailsForGood => Err(error::permanent("no such account").into()),
            Skips => Err(error::skip("a test order").into()),
            Stops => Err(error::stop("no database").into()),
            IsOverloaded => Err(Overloaded::new().into()),
            Panics => resume_unwind(Box::new("test panic")),
            Hangs => std::future::pending().await,
        }
    }

    /// Asserts that the result of the caller agrees with the store.
    async fn assert_matches_operations<B: Backend>(
        self,
        environment: &Environment<B>,
        record: &Record,
        result: Result<Outcome<u64>, BoxError>,
    ) {
        let error = match result {
            Ok(outcome) => return environment.check_finished(record, &outcome),
            Err(error) => error,
        };
        let lock = match IdempotencyError::find(&*error).unwrap() {
            IdempotencyError::AttemptFailed(failed) => failed.take_lock(),
            IdempotencyError::Exhausted(exhausted) => exhausted.take_lock(),
            _ => None,
        };
        if let Some(lock) = lock {
            self.give_up(lock).await;
        }
    }

    async fn give_up(self, lock: HeldLock) {
        sleep(self.give_up_time).await;
        // The lock may have been lost meanwhile, which is reported, or its keeper may have crashed.
        match self.give_up_end {
            GivesUp => drop(lock.give_up("published").await),
            Releases => drop(lock.release().await),
            GivesBack => drop(lock.fail().await),
            Drops => drop(lock),
        }
    }
}

/// What a process wraps around the handler of a request.
pub(super) struct Stack {
    pub(super) process: u64,
    pub(super) layer: SimulatedLayer,
    pub(super) recorder: HistoryRecorder,
}

impl Stack {
    fn service<H, F>(self, handler: H) -> BoxService<Record, Outcome<u64>, BoxError>
    where
        H: Fn(Request) -> F + Clone + Send + 'static,
        F: Future<Output = Result<u64, BoxError>> + Send + 'static,
    {
        // Boxed, because rustc does not see that the future of a handler is `Send`.
        let handler = move |request| handler(request).boxed();
        let service = ServiceBuilder::new()
            // Records each answer.
            .layer(self.recorder.answers())
            .layer(DecodeLayer::raw())
            .layer(self.layer)
            // Records each run.
            .layer(self.recorder.runs())
            .service_fn(handler);
        BoxService::new(service)
    }

    /// Runs a handler that returns its token at once.
    pub(super) async fn run_to_success<B: Backend>(
        self,
        environment: &Environment<B>,
        record: Record,
    ) -> Result<Outcome<u64>, BoxError> {
        let (handlers, process) = (environment.handlers.clone(), self.process);
        let service = self.service(move |request: Request| {
            let lock = request.lock().unwrap().clone();
            let work = handlers.start(process, &lock);
            async move {
                drop(work);
                Ok(FencingToken::get(lock.token()))
            }
        });
        let outcome = service.oneshot(record.clone()).await?;
        environment.check_finished(&record, &outcome);
        Ok(outcome)
    }
}
