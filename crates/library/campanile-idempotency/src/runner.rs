//! The idempotency layer around a plain function.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use campanile_core::{
    BoxError, BoxableError, CarryLock, ConfigError, IdempotencyKey, IntoKey, KeyExtractor,
    LockHandle, Outcome,
};
use tower_service::Service;

use crate::config::IdempotencyConfig;
use crate::keeper::IntoKeeper;
use crate::layer::IdempotencyLayer;
use crate::reply::{NoReply, ReplyCodec};
use crate::service::IdempotencyService;

/// Runs a function once per key, with the idempotency layer but without a tower stack.
///
/// For functions that write to Postgres in one transaction with their entry, use the `InboxRunner`
/// of `campanile-postgres`.
///
/// ```
/// use campanile_core::{BoxError, Outcome};
/// use campanile_idempotency::{Runner, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let runner = Runner::new(MemoryStore::new(), "jobs")?;
/// let first = runner.run("job-1", async |_lock| Ok::<_, BoxError>("done")).await?;
/// assert_eq!(first, Outcome::Processed("done"));
/// assert!(runner.run("job-1", async |_lock| Ok::<_, BoxError>("done")).await?.is_duplicate());
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Runner<C = NoReply>(IdempotencyLayer<JobKey, C>);

impl Runner {
    /// Creates a runner over this store or keeper. `config` may be just the name of a namespace. For
    /// other policies, create one [from a layer](Self::from).
    ///
    /// # Errors
    /// See [`IdempotencyLayer::new`].
    pub fn new(
        store: impl IntoKeeper,
        config: impl Into<IdempotencyConfig>,
    ) -> Result<Self, ConfigError> {
        Ok(Self(IdempotencyLayer::new(store, config, JobKey)?))
    }
}

impl<C> Runner<C> {
    /// Runs `f` under the lock of the key, unless the key is COMPLETED. The lock is `None` if a
    /// policy lets `f` run without one.
    ///
    /// # Errors
    /// A boxed [`IdempotencyError`](crate::IdempotencyError), with the error of `f` as a source. If `f`
    /// ran without a lock, its error is returned unchanged.
    ///
    /// # Cancellation
    /// See [`ResponseFuture`](crate::ResponseFuture).
    pub async fn run<F, Fut, T, Err>(&self, key: impl IntoKey, f: F) -> Result<Outcome<T>, BoxError>
    where
        F: FnOnce(Option<LockHandle>) -> Fut,
        Fut: Future<Output = Result<T, Err>>,
        Err: BoxableError,
        C: ReplyCodec<T>,
    {
        let job = Job { key: key.into_key(), f, lock: None };
        let run = JobService(PhantomData);
        IdempotencyService::new(run, self.0.clone()).call(job).await
    }
}

/// Creates a runner with the layer's settings, except for its extractor, which is ignored.
impl<E, C> From<IdempotencyLayer<E, C>> for Runner<C> {
    fn from(layer: IdempotencyLayer<E, C>) -> Self {
        Self(layer.with_key(JobKey))
    }
}

impl<C> Clone for Runner<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> fmt::Debug for Runner<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runner").field(&self.0).finish()
    }
}

/// A function as a request.
struct Job<F> {
    key: Result<Option<IdempotencyKey>, BoxError>,
    f: F,
    lock: Option<LockHandle>,
}

impl<F> CarryLock for Job<F> {
    fn set_lock(&mut self, lock: LockHandle) {
        self.lock = Some(lock);
    }

    fn lock_handle(&self) -> Option<&LockHandle> {
        self.lock.as_ref()
    }
}

struct JobKey;

impl<F> KeyExtractor<Job<F>> for JobKey {
    fn extract(&self, job: &Job<F>) -> Result<Option<IdempotencyKey>, BoxError> {
        match &job.key {
            Ok(key) => Ok(key.clone()),
            Err(error) => Err(error.to_string().into()),
        }
    }
}

/// The service that runs the function.
struct JobService<F>(PhantomData<fn(F)>);

impl<F> Clone for JobService<F> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<F, Fut, T, Err> Service<Job<F>> for JobService<F>
where
    F: FnOnce(Option<LockHandle>) -> Fut,
    Fut: Future<Output = Result<T, Err>>,
{
    type Response = T;
    type Error = Err;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Err>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job<F>) -> Fut {
        (job.f)(job.lock)
    }
}
