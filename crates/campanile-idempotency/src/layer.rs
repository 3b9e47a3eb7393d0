//! The layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL, MIN_LOCK_TTL};
use campanile_core::{Classify, ConfigError, IdempotencyKey, Namespace, Retention};
use tower_layer::Layer;

use crate::backoff::Backoff;
use crate::keeper::{IntoKeeper, LockKeeper, Terms};
use crate::policy::{OnAbandoned, OnGivenUp, OnLargeReply, OnLocked, OnLost, OnMissingKey};
use crate::reply::{NoReply, ReplyCipher};
use crate::service::IdempotencyService;
use crate::store::StoreError;

/// Guards the service inside: one lock for each idempotency key, renewed while the service works,
/// and its outcome recorded, so that a later duplicate is answered and not processed.
///
/// The answer is an [`Outcome`](campanile_core::Outcome), the error a boxed
/// [`IdempotencyError`](crate::IdempotencyError). Layers of one process should share a
/// [`LockKeeper`].
///
/// ```
/// use campanile_core::{BoxError, Guarded, Outcome};
/// use campanile_idempotency::{IdempotencyLayer, MemoryStore};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// #[derive(Clone)]
/// struct Job { id: u64 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = ServiceBuilder::new()
///     // room for a lock
///     .map_request(Guarded::new)
///     // one lock for each job
///     .layer(IdempotencyLayer::new(MemoryStore::new(), "jobs", |job: &Guarded<Job>| job.id)?)
///     .service_fn(async |_: Guarded<Job>| Ok::<_, BoxError>("done"));
///
/// let first = service.ready().await?.call(Job { id: 7 }).await?;
/// assert_eq!(first, Outcome::Processed("done"));
/// assert!(service.ready().await?.call(Job { id: 7 }).await?.is_duplicate());
/// # Ok(())
/// # }
/// ```
pub struct IdempotencyLayer<E, C = NoReply> {
    pub(crate) guard: Arc<Policies>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) key: Arc<E>,
    pub(crate) codec: Arc<C>,
}

/// All that does not depend on the request's type.
#[derive(Clone)]
pub(crate) struct Policies {
    pub(crate) keeper: LockKeeper,
    pub(crate) namespace: Namespace,
    pub(crate) missing_key: OnMissingKey,
    pub(crate) locked: OnLocked,
    pub(crate) lost: OnLost,
    pub(crate) abandoned: OnAbandoned,
    pub(crate) given_up: OnGivenUp,
    pub(crate) fail_open: Option<Arc<FailOpen>>,
    pub(crate) classifiers: Vec<Arc<dyn Classify>>,
    pub(crate) backoff: Backoff,
    pub(crate) max_reply_bytes: usize,
    pub(crate) large_reply: OnLargeReply,
    pub(crate) cipher: Option<Arc<dyn ReplyCipher>>,
}

/// A layer without its extractor.
pub(crate) struct Shared<C> {
    pub(crate) guard: Arc<Policies>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) codec: Arc<C>,
}

pub(crate) type FailOpen = dyn Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync;

impl<E> IdempotencyLayer<E> {
    /// A layer over this store (for which it starts a keeper) or keeper, for the keys of this
    /// namespace, found by this extractor.
    ///
    /// # Errors
    /// If the namespace is not `[a-z0-9._-]{1,64}`, or the keeper's thread cannot be started.
    pub fn new<N>(store: impl IntoKeeper, namespace: N, key: E) -> Result<Self, ConfigError>
    where
        N: TryInto<Namespace, Error: Into<ConfigError>>,
        E: Send + Sync + 'static,
    {
        Ok(Self {
            guard: Arc::new(Policies {
                namespace: namespace.try_into().map_err(Into::into)?,
                keeper: store.into_keeper()?,
                missing_key: OnMissingKey::default(),
                locked: OnLocked::default(),
                lost: OnLost::default(),
                abandoned: OnAbandoned::default(),
                given_up: OnGivenUp::default(),
                fail_open: None,
                classifiers: Vec::new(),
                backoff: Backoff::default(),
                max_reply_bytes: 4 * 1024,
                large_reply: OnLargeReply::default(),
                cipher: None,
            }),
            terms: Arc::new(Terms {
                ttl: Duration::from_secs(30),
                max_attempts: 8,
                max_hold: Duration::from_secs(10 * 60),
                retention: Retention::default(),
            }),
            key: Arc::new(key),
            codec: Arc::new(NoReply),
        })
    }
}

impl<E, C> IdempotencyLayer<E, C> {
    /// Keeps the reply by this codec, to answer duplicates with; see [`reply`](crate::reply).
    /// Default: none.
    pub fn with_reply<D: Send + Sync + 'static>(self, codec: D) -> IdempotencyLayer<E, D> {
        let Self { guard, terms, key, codec: _ } = self;
        IdempotencyLayer { guard, terms, key, codec: Arc::new(codec) }
    }

    /// How long a lock lives without a renewal. Default: 30 s, because that is how long a crashed
    /// process keeps others waiting, and longer than a failover that is set to seconds. A call to the store
    /// gets a sixth of it, and at most 5 s, before it is taken for lost; an event warns where the
    /// store's own time-outs are longer.
    ///
    /// # Errors
    /// Below 500 ms or above 1 h.
    pub fn with_lock_ttl(mut self, ttl: Duration) -> Result<Self, ConfigError> {
        if !(MIN_LOCK_TTL..=MAX_LOCK_TTL).contains(&ttl) {
            return Err(ConfigError::new(format!(
                "the lock's time to live must be {MIN_LOCK_TTL:?} to {MAX_LOCK_TTL:?}, not {ttl:?}"
            )));
        }
        self.guard.keeper.warn_of_short(ttl);
        self.terms_mut().ttl = ttl;
        Ok(self)
    }

    /// How long a COMPLETED entry is kept; a later duplicate runs the handler again. Default: 7 d,
    /// because Kafka keeps records for so long by default. The Kafka driver warns of a topic that keeps
    /// them for longer.
    ///
    /// # Errors
    /// Below 1 s or above 10 years.
    pub fn with_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const LEAST: Duration = Duration::from_secs(1);
        self.retain("retention", LEAST, retention, |kept| &mut kept.completed)
    }

    /// How long an entry with attempts but no end is kept, and so how long its attempts count.
    /// Default: 7 d. It must cover the longest outage and back-off.
    ///
    /// # Errors
    /// Below 25 h, the longest back-off and the longest lock; or above 10 years.
    pub fn with_attempt_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const LEAST: Duration = MAX_BACKOFF.saturating_add(MAX_LOCK_TTL);
        self.retain("attempt retention", LEAST, retention, |kept| &mut kept.attempts)
    }

    /// How long a FAILED entry is kept; after that poison gets its attempts again. Default: 30 d.
    ///
    /// # Errors
    /// Below 1 s or above 10 years.
    pub fn with_failed_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const LEAST: Duration = Duration::from_secs(1);
        self.retain("retention of what failed", LEAST, retention, |kept| &mut kept.failed)
    }

    /// How many attempts a key gets, crashes included. Default: 8, which by the default back-off
    /// takes two minutes at most.
    ///
    /// # Errors
    /// Zero, or above 65 535.
    pub fn with_max_attempts(mut self, attempts: u32) -> Result<Self, ConfigError> {
        match u16::try_from(attempts) {
            Ok(attempts) if attempts > 0 => self.terms_mut().max_attempts = attempts,
            _ => {
                return Err(ConfigError::new(format!(
                    "the attempts must be 1 to {}, not {attempts}",
                    u16::MAX
                )));
            }
        }
        Ok(self)
    }

    /// How long one lock is held and renewed at most; then it is lost. Default: 10 min, because a
    /// handler that hangs must end some time.
    ///
    /// # Errors
    /// Below 500 ms or above 24 h.
    pub fn with_max_hold(mut self, max_hold: Duration) -> Result<Self, ConfigError> {
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
        if !(MIN_LOCK_TTL..=LONGEST).contains(&max_hold) {
            return Err(ConfigError::new(format!(
                "`max_hold` must be {MIN_LOCK_TTL:?} to {LONGEST:?}, not {max_hold:?}"
            )));
        }
        self.terms_mut().max_hold = max_hold;
        Ok(self)
    }

    /// Encrypts the replies that are kept, and decrypts them for duplicates. Default: they are kept
    /// as the codec makes them.
    pub fn with_reply_encryption(mut self, cipher: impl ReplyCipher) -> Self {
        self.guard_mut().cipher = Some(Arc::new(cipher));
        self
    }

    /// The largest reply that is kept, in bytes after encoding and encryption; see
    /// [`with_large_reply`](Self::with_large_reply). Default: 4 KiB, because each is kept in the
    /// store for the whole retention.
    pub fn with_max_reply_bytes(mut self, bytes: usize) -> Self {
        self.guard_mut().max_reply_bytes = bytes;
        self
    }

    /// A reply that is larger. Default: completed without it.
    pub fn with_large_reply(mut self, policy: OnLargeReply) -> Self {
        self.guard_mut().large_reply = policy;
        self
    }

    /// How long a key waits after a failed attempt. Default: 1 s doubling to 5 min, with full jitter.
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.guard_mut().backoff = backoff;
        self
    }

    /// A request without a key. Default: rejected.
    pub fn with_missing_key(mut self, policy: OnMissingKey) -> Self {
        self.guard_mut().missing_key = policy;
        self
    }

    /// A key that somebody else holds. Default: an error.
    pub fn with_locked(mut self, policy: OnLocked) -> Self {
        self.guard_mut().locked = policy;
        self
    }

    /// A lock that is lost while the inner service works. Default: cancel.
    pub fn with_lost(mut self, policy: OnLost) -> Self {
        self.guard_mut().lost = policy;
        self
    }

    /// A response future that is dropped while the inner service works. Default: a failed attempt.
    pub fn with_abandoned(mut self, policy: OnAbandoned) -> Self {
        self.guard_mut().abandoned = policy;
        self
    }

    /// A key that gets no further attempt. Default: its lock is handed over in the error.
    pub fn with_given_up(mut self, policy: OnGivenUp) -> Self {
        self.guard_mut().given_up = policy;
        self
    }

    /// Lets a request through without a lock when the store is unavailable and this says so; the
    /// answer is then [`Unguarded`](campanile_core::Outcome::Unguarded), nothing is recorded, and
    /// **every duplicate runs**, also later. Default: never.
    ///
    /// It is not asked about an entry that cannot be read
    /// ([`Unreadable`](crate::StoreErrorKind::Unreadable)): the store is there, and its key may have been
    /// completed. That request is refused with the store's error.
    pub fn with_fail_open_risking_duplicates(
        mut self,
        when: impl Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.guard_mut().fail_open = Some(Arc::new(when));
        self
    }

    /// Asks this what an error of the inner service means, before those given earlier, and before
    /// [`Defaults`](crate::Defaults).
    pub fn with_classifier(mut self, classifier: impl Classify) -> Self {
        self.guard_mut().classifiers.insert(0, Arc::new(classifier));
        self
    }

    /// The same with another extractor.
    #[doc(hidden)]
    pub fn with_key<F>(self, key: F) -> IdempotencyLayer<F, C> {
        let Self { guard, terms, key: _, codec } = self;
        IdempotencyLayer { guard, terms, key: Arc::new(key), codec }
    }

    /// What a response future needs of it.
    pub(crate) fn shared(&self) -> Shared<C> {
        Shared { guard: self.guard.clone(), terms: self.terms.clone(), codec: self.codec.clone() }
    }

    fn guard_mut(&mut self) -> &mut Policies {
        Arc::make_mut(&mut self.guard)
    }

    fn terms_mut(&mut self) -> &mut Terms {
        Arc::make_mut(&mut self.terms)
    }

    fn retain(
        mut self,
        what: &str,
        least: Duration,
        retention: Duration,
        field: fn(&mut Retention) -> &mut Duration,
    ) -> Result<Self, ConfigError> {
        const MOST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        if !(least..=MOST).contains(&retention) {
            return Err(ConfigError::new(format!(
                "the {what} must be {least:?} to 10 years, not {retention:?}"
            )));
        }
        *field(&mut self.terms_mut().retention) = retention;
        Ok(self)
    }
}

impl<S, E, C> Layer<S> for IdempotencyLayer<E, C> {
    type Service = IdempotencyService<S, E, C>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.clone())
    }
}

impl<E, C> Clone for IdempotencyLayer<E, C> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            terms: self.terms.clone(),
            key: self.key.clone(),
            codec: self.codec.clone(),
        }
    }
}

impl<E, C> fmt::Debug for IdempotencyLayer<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("namespace", &self.guard.namespace)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
