//! [`BatchLayer`].

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use campanile_core::{BoxableError, ConfigError};
use tower_layer::Layer;
use tower_service::Service;

use super::{BatchLimits, BatchService};

/// Turns a service that processes many requests at a time into a service for single requests. The
/// inner service is a `Service<Vec<R>>` with a `Vec` as response, one result per request in
/// the same order.
///
/// Inside the [`IdempotencyLayer`](crate::IdempotencyLayer), each record of a batch has its own
/// lock, attempt and outcome, and the driver commits each record separately: a failed record does
/// not affect the others.
///
/// ```
/// use campanile_core::{BoxError, DecodeLayer, Request, key};
/// use campanile_idempotency::{BatchLayer, IdempotencyLayer, MemoryStore};
/// use std::time::Duration;
/// use tower::ServiceBuilder;
///
/// #[derive(serde::Deserialize)]
/// struct Payment { id: String, cents: u64 }
///
/// /// Inserts all valid payments in one round trip.
/// async fn insert(batch: Vec<Request<Payment>>) -> Result<Vec<Result<(), BoxError>>, BoxError> {
///     let written = |request: &Request<Payment>| match request.body().cents {
///         0 => Err("nothing to pay".into()),
///         _ => Ok(()),
///     };
///     Ok(batch.iter().map(written).collect())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let service = ServiceBuilder::new()
///     // records that cannot be decoded never enter a batch
///     .layer(DecodeLayer::json())
///     // one lock per payment
///     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::field(|p: &Payment| &p.id))?)
///     // a payment that times out, including its wait, fails only its own attempt
///     .timeout(Duration::from_secs(10))
///     // at most 100 payments per batch
///     .layer(BatchLayer::new(100, Duration::from_millis(20))?)
///     // at most four batches in flight
///     .concurrency_limit(4)
///     .service_fn(insert);
/// # let record = |cents: u64| campanile_core::Record::builder("payments", 0, cents as i64)
/// #     .payload(format!(r#"{{"id":"{cents}","cents":{cents}}}"#)).build();
/// # use tower::ServiceExt;
/// # let (good, bad) = tokio::join!(service.clone().oneshot(record(7)), service.oneshot(record(0)));
/// # assert!(good.is_ok() && bad.is_err());
/// # Ok(())
/// # }
/// ```
///
/// # When a batch starts
/// Immediately, if no batch is running: an idle system adds no latency. Otherwise, requests are
/// collected until a running batch ends, `max` requests are collected, or the oldest one has waited
/// for `linger`; and until the service is ready. Batches that are started this way run
/// concurrently; a concurrency limit inside bounds their number.
///
/// At most twice `max` requests may wait, including those that are still acquiring their locks.
/// Beyond that, the service is not ready.
///
/// # Errors
/// Each request gets its own result. If the whole batch fails, if the service panics, or if the
/// number of results differs from the number of requests, each request gets a
/// [`BatchError`](super::BatchError).
///
/// The first call spawns a task on its runtime. If that runtime ends, the service is never ready again.
///
/// # Requests that leave a batch
/// A request leaves its batch if its lock is lost, if it times out, or if its partition is revoked;
/// the other requests continue. If the batch has not started, the service does not see the request.
/// A request **cannot be removed** from a running batch: the service continues to process it
/// without a lock. [`LockHandle::check`](campanile_core::LockHandle::check) detects this, as does a receiver
/// that compares the fencing token.
///
/// # Order
/// The records of a batch come from different partitions, or have different keys: the driver starts
/// a record only after the previous one has finished.
#[must_use]
pub struct BatchLayer<R> {
    limits: BatchLimits,
    request: PhantomData<fn(R)>,
}

/// The maximum batch size.
const MAX_BATCH_SIZE: usize = 65_536;

/// The upper limit of `linger`, so that its end can be computed without overflow.
const MAX_LINGER: Duration = Duration::from_secs(24 * 60 * 60);

impl<R> BatchLayer<R> {
    /// Creates a layer for batches of at most `max` requests. No request waits longer than `linger`
    /// for others while the service is ready; a `linger` of more than a day counts as a day.
    ///
    /// # Errors
    /// If `max` is zero or above 65 536.
    pub fn new(max: usize, linger: Duration) -> Result<Self, ConfigError> {
        if !(1..=MAX_BATCH_SIZE).contains(&max) {
            let text = format!("batch size must be between 1 and {MAX_BATCH_SIZE}, got {max}");
            return Err(ConfigError::new(text));
        }
        let limits = BatchLimits { max, linger: linger.min(MAX_LINGER) };
        Ok(Self { limits, request: PhantomData })
    }
}

impl<S, R, T, E> Layer<S> for BatchLayer<R>
where
    S: Service<Vec<R>, Response = Vec<Result<T, E>>> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    E: BoxableError + 'static,
{
    type Service = BatchService<R, T>;

    fn layer(&self, inner: S) -> BatchService<R, T> {
        BatchService::new(inner, self.limits)
    }
}

impl<R> Clone for BatchLayer<R> {
    fn clone(&self) -> Self {
        Self { limits: self.limits, request: PhantomData }
    }
}

impl<R> fmt::Debug for BatchLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchLayer")
            .field("max", &self.limits.max)
            .field("linger", &self.limits.linger)
            .finish()
    }
}
