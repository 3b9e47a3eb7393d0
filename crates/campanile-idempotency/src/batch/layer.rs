//! The layer.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use campanile_core::{BoxableError, ConfigError};
use tower_layer::Layer;
use tower_service::Service;

use super::{BatchService, Terms};

/// Makes a service for single requests of one that takes many at a time: a `Service<Vec<R>>` that
/// answers with a `Vec` of one result for each, in their order.
///
/// Inside the [`IdempotencyLayer`](crate::IdempotencyLayer) each record of a batch has its own lock,
/// attempt and outcome, and the driver commits each by itself: one that fails does not fail its
/// neighbours.
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
/// /// Writes all that can be written, in one round trip.
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
///     // what does not decode is in no batch
///     .layer(DecodeLayer::json())
///     // one lock for each payment
///     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::field(|p: &Payment| &p.id))?)
///     // a payment that takes long, its wait included, fails its attempt, and no other
///     .timeout(Duration::from_secs(10))
///     // at most 100 at a time
///     .layer(BatchLayer::new(100, Duration::from_millis(20))?)
///     // at most four batches at work
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
/// # When a batch begins
/// At once, if none is at work: an idle system pays no latency. Otherwise what comes meanwhile is
/// collected until one that is at work has ended, or `max` are there, or the oldest has waited for
/// `linger`; and until the service is ready. As many batches as begin so are at work side by side: a
/// concurrency limit inside bounds them.
///
/// Twice `max` requests may wait, those included whose lock is being acquired; then the service is not
/// ready.
///
/// # Errors
/// A request's own result is its own. An error of the whole batch, a panic, or another number of results
/// than of requests is each request's [`BatchError`](super::BatchError).
///
/// # Requests that leave
/// A request whose lock is lost, whose time is up, or whose partition is revoked, leaves its batch, and
/// the others go on. If the batch was not yet at work, the service does not see it. From a batch that is
/// at work it **cannot be taken out**: the service works on with it, although it has no lock any more.
/// [`Lock::check`](campanile_core::Lock::check) tells, as does a receiver that compares the fencing token.
///
/// # Order
/// The records of a batch are of different partitions, or of different keys: the driver hands over the
/// next only when the one before it is finished.
pub struct BatchLayer<R> {
    terms: Terms,
    request: PhantomData<fn(R)>,
}

/// The largest batch.
const MOST: usize = 65_536;

impl<R> BatchLayer<R> {
    /// Batches of at most `max` requests, of which none waits longer than `linger` for others while
    /// the service is ready.
    ///
    /// # Errors
    /// If `max` is zero or above 65 536.
    pub fn new(max: usize, linger: Duration) -> Result<Self, ConfigError> {
        if !(1..=MOST).contains(&max) {
            let text = format!("a batch must be of 1 to {MOST} requests, not {max}");
            return Err(ConfigError::new(text));
        }
        Ok(Self { terms: Terms { max, linger }, request: PhantomData })
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
        BatchService::new(inner, self.terms)
    }
}

impl<R> Clone for BatchLayer<R> {
    fn clone(&self) -> Self {
        Self { terms: self.terms, request: PhantomData }
    }
}

impl<R> fmt::Debug for BatchLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchLayer")
            .field("max", &self.terms.max)
            .field("linger", &self.terms.linger)
            .finish()
    }
}
