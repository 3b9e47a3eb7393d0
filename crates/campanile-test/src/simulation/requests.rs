//! A request, its handler and its caller.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, FencingToken, Outcome, Request, error};
use campanile_idempotency::{HeldLock, IdempotencyError};
use fastrand::Rng;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tower::load_shed::error::Overloaded;
use tower::{Layer, ServiceExt, service_fn};

use super::Environment;
use super::plan::Plan;
use super::process::{SimulatedLayer, choose};
use crate::harness::{HOUR, request, store_key};

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
    key: usize,
    handler_time: Duration,
    handler_end: HandlerEnd,
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
            drop_after,
            is_interrupted: rng.bool(),
            give_up_end: *choose(rng, &[GivesUp, Releases, GivesBack, Drops]),
            give_up_time: time(rng),
        }
    }

    pub(super) async fn run(
        self,
        environment: Arc<Environment>,
        layer: SimulatedLayer,
        process: u64,
    ) {
        let env = environment.clone();
        let service = layer.layer(service_fn(move |request: Request<()>| {
            let lock = request.lock_handle().unwrap().clone();
            let work = env.handlers.start(process, &lock);
            let env = env.clone();
            async move {
                let _work = work;
                let key = store_key(&self.key.to_string());
                if !env.history.has_granted(&key, lock.token()) {
                    env.handlers.add_violation(format!("handler without a grant: {lock:?}"));
                }
                for _ in 0..3 {
                    sleep(self.handler_time / 3).await;
                    env.handlers.check_locks();
                }
                self.end(lock.token()).await
            }
        }));
        let request = request(&self.key.to_string());
        let record = request.record().clone();
        // Boxed, because rustc does not see that the future of a handler in this body is `Send`.
        let call = service.oneshot(request).boxed();
        let mut call = AssertUnwindSafe(call).catch_unwind();
        let result = match self.drop_after {
            Some(after) => timeout(after, &mut call).await.ok(),
            None => Some((&mut call).await),
        };
        if self.is_interrupted {
            record.set_interrupted();
        }
        drop(call);
        if let Some(Ok(result)) = result {
            self.assert_matches_history(&environment, result).await;
        }
        let released = timeout(HOUR * 2, record.lock_released()).await;
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
    async fn assert_matches_history(
        self,
        environment: &Environment,
        result: Result<Outcome<u64>, BoxError>,
    ) {
        let (key, history) = (store_key(&self.key.to_string()), &environment.history);
        let completed = |token| history.has_completed(&key, FencingToken::new(token).unwrap());
        match result {
            Ok(Outcome::Processed(token)) => assert!(completed(token)),
            Ok(Outcome::Duplicate(duplicate)) => assert!(completed(duplicate.reply.unwrap())),
            Ok(Outcome::GivenUp(_)) => assert!(history.has_rejected(&key)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                let lock = match IdempotencyError::find(&*error).unwrap() {
                    IdempotencyError::AttemptFailed(failed) => failed.take_lock(),
                    IdempotencyError::Exhausted(exhausted) => exhausted.take_lock(),
                    _ => None,
                };
                if let Some(lock) = lock {
                    self.give_up(lock).await;
                }
            }
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
