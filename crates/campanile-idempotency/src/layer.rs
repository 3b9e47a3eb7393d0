//! [`IdempotencyLayer`] and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_LOCK_TTL, MIN_LOCK_TTL};
use campanile_core::{Classify, ConfigError, IdempotencyKey, Namespace, Retention};
use tower_layer::Layer;

use crate::backoff::Backoff;
use crate::keeper::{IntoKeeper, LockKeeper, LockSettings};
use crate::policy::{OnAbandoned, OnGivenUp, OnLargeReply, OnLocked, OnLost, OnMissingKey};
use crate::reply::{NoReply, ReplyCipher};
use crate::service::IdempotencyService;
use crate::store::StoreError;

/// Guards the inner service with one lock per idempotency key. The layer renews the lock while the
/// service runs, and records the outcome, so that later duplicates are answered without running the
/// service.
///
/// The response is an [`Outcome`](campanile_core::Outcome), the error a boxed
/// [`IdempotencyError`](crate::IdempotencyError). The layers of a process should share one
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
///     // adds a field for the lock
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
    pub(crate) policies: Arc<Policies>,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) key: Arc<E>,
    pub(crate) codec: Arc<C>,
}

/// The settings that do not depend on the request type.
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

/// The parts of a layer except its extractor.
pub(crate) struct LayerParts<C> {
    pub(crate) policies: Arc<Policies>,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) codec: Arc<C>,
}

pub(crate) type FailOpen = dyn Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync;

impl<E> IdempotencyLayer<E> {
    /// Creates a layer over a store, for which it starts a keeper, or over an existing keeper. Keys
    /// belong to `namespace` and are found by the extractor `key`.
    ///
    /// # Errors
    /// If the namespace is not `[a-z0-9._-]{1,64}`, or if the keeper's thread cannot be started.
    pub fn new<N>(store: impl IntoKeeper, namespace: N, key: E) -> Result<Self, ConfigError>
    where
        N: TryInto<Namespace, Error: Into<ConfigError>>,
        E: Send + Sync + 'static,
    {
        Ok(Self {
            policies: Arc::new(Policies {
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
            settings: Arc::new(LockSettings {
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
    /// Keeps replies with this codec, to answer duplicates with them; see [`reply`](crate::reply).
    /// Default: replies are not kept.
    pub fn with_reply<D: Send + Sync + 'static>(self, codec: D) -> IdempotencyLayer<E, D> {
        let Self { policies, settings, key, codec: _ } = self;
        IdempotencyLayer { policies, settings, key, codec: Arc::new(codec) }
    }

    /// Sets how long a lock lives without a renewal.
    ///
    /// Default: 30 s. This is how long a crashed process blocks its keys, and it is longer than a
    /// store failover that takes seconds. The lock keeper waits for a call to the store for at most
    /// a sixth of the TTL, and at most 5 s. It logs a warning if the store's own timeouts are
    /// longer.
    ///
    /// # Errors
    /// If the TTL is below 500 ms or above 1 h.
    pub fn with_lock_ttl(mut self, ttl: Duration) -> Result<Self, ConfigError> {
        if !(MIN_LOCK_TTL..=MAX_LOCK_TTL).contains(&ttl) {
            return Err(ConfigError::new(format!(
                "lock TTL must be between {MIN_LOCK_TTL:?} and {MAX_LOCK_TTL:?}, got {ttl:?}"
            )));
        }
        self.policies.keeper.warn_if_ttl_short(ttl);
        self.settings_mut().ttl = ttl;
        Ok(self)
    }

    /// Sets how long a COMPLETED entry is kept. After that, a duplicate runs the handler again.
    ///
    /// Default: 7 d, because Kafka keeps records for 7 d by default. The Kafka driver logs a
    /// warning if a topic keeps them longer.
    ///
    /// # Errors
    /// If the retention is below 1 s or above 10 years.
    pub fn with_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const MIN_RETENTION: Duration = Duration::from_secs(1);
        self.set_retention("retention", MIN_RETENTION, retention, |retention| {
            &mut retention.completed
        })
    }

    /// Sets how long an entry with attempts but without an outcome is kept, and thus how long its
    /// attempts count. Default: 7 d. It must cover the longest outage and backoff.
    ///
    /// # Errors
    /// If the retention is below 25 h, which is the longest backoff plus the longest lock, or above
    /// 10 years.
    pub fn with_attempt_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const MIN_RETENTION: Duration = MAX_BACKOFF.saturating_add(MAX_LOCK_TTL);
        self.set_retention("attempt retention", MIN_RETENTION, retention, |retention| {
            &mut retention.attempts
        })
    }

    /// Sets how long a FAILED entry is kept. After that, a poison record gets all its attempts
    /// again. Default: 30 d.
    ///
    /// # Errors
    /// If the retention is below 1 s or above 10 years.
    pub fn with_failed_retention(self, retention: Duration) -> Result<Self, ConfigError> {
        const MIN_RETENTION: Duration = Duration::from_secs(1);
        self.set_retention("failed retention", MIN_RETENTION, retention, |retention| {
            &mut retention.failed
        })
    }

    /// Sets the number of attempts per key, including crashed ones. Default: 8. The default backoffs
    /// between them take at most 127 s together, in addition to the time of the handler.
    ///
    /// # Errors
    /// If the number is zero or above 65 535.
    pub fn with_max_attempts(mut self, attempts: u32) -> Result<Self, ConfigError> {
        match u16::try_from(attempts) {
            Ok(attempts) if attempts > 0 => self.settings_mut().max_attempts = attempts,
            _ => {
                return Err(ConfigError::new(format!(
                    "max attempts must be between 1 and {}, got {attempts}",
                    u16::MAX
                )));
            }
        }
        Ok(self)
    }

    /// Sets how long a lock is held and renewed at most; after that it is lost. Default: 10 min, so
    /// that a handler that hangs ends eventually.
    ///
    /// # Errors
    /// If the time is below 500 ms or above 24 h.
    pub fn with_max_hold(mut self, max_hold: Duration) -> Result<Self, ConfigError> {
        const MAX_HOLD: Duration = Duration::from_secs(24 * 60 * 60);
        if !(MIN_LOCK_TTL..=MAX_HOLD).contains(&max_hold) {
            return Err(ConfigError::new(format!(
                "`max_hold` must be between {MIN_LOCK_TTL:?} and {MAX_HOLD:?}, got {max_hold:?}"
            )));
        }
        self.settings_mut().max_hold = max_hold;
        Ok(self)
    }

    /// Encrypts the replies that are kept, and decrypts them for duplicates. Default: replies are
    /// kept as the codec encodes them.
    pub fn with_reply_encryption(mut self, cipher: impl ReplyCipher) -> Self {
        self.policies_mut().cipher = Some(Arc::new(cipher));
        self
    }

    /// Sets the maximum size of a kept reply, in bytes after encoding and encryption; see
    /// [`with_large_reply`](Self::with_large_reply). Default: 4 KiB, because the store keeps each
    /// reply for the whole retention.
    pub fn with_max_reply_bytes(mut self, bytes: usize) -> Self {
        self.policies_mut().max_reply_bytes = bytes;
        self
    }

    /// Sets the policy for larger replies. Default: the entry is completed without the reply.
    pub fn with_large_reply(mut self, policy: OnLargeReply) -> Self {
        self.policies_mut().large_reply = policy;
        self
    }

    /// Sets the backoff after a failed attempt. Default: 1 s, doubling to 5 min, with full jitter.
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.policies_mut().backoff = backoff;
        self
    }

    /// Sets the policy for requests without a key. Default: they are rejected.
    pub fn with_missing_key(mut self, policy: OnMissingKey) -> Self {
        self.policies_mut().missing_key = policy;
        self
    }

    /// Sets the policy for keys that another owner holds. Default: an error.
    pub fn with_locked(mut self, policy: OnLocked) -> Self {
        self.policies_mut().locked = policy;
        self
    }

    /// Sets the policy for locks that are lost while the inner service is running. Default: cancel.
    pub fn with_lost(mut self, policy: OnLost) -> Self {
        self.policies_mut().lost = policy;
        self
    }

    /// Sets the policy for response futures that are dropped while the inner service is running.
    /// Default: a failed attempt.
    pub fn with_abandoned(mut self, policy: OnAbandoned) -> Self {
        self.policies_mut().abandoned = policy;
        self
    }

    /// Sets the policy for keys that get no further attempt. Default: the error contains the lock.
    pub fn with_given_up(mut self, policy: OnGivenUp) -> Self {
        self.policies_mut().given_up = policy;
        self
    }

    /// Lets requests through without a lock if the store is unavailable and this predicate returns
    /// `true`.
    ///
    /// The outcome is then [`Unguarded`](campanile_core::Outcome::Unguarded), nothing is recorded,
    /// and **every duplicate runs**, including later ones. Default: never.
    ///
    /// The predicate is not called for an entry that cannot be read
    /// ([`Unreadable`](crate::StoreErrorKind::Unreadable)): the store is available, and the key may
    /// have been completed. Such a request fails with the store's error.
    pub fn with_fail_open_risking_duplicates(
        mut self,
        when: impl Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policies_mut().fail_open = Some(Arc::new(when));
        self
    }

    /// Adds a classifier for errors of the inner service. Classifiers are asked in the reverse of
    /// the order in which they were added: the last one added takes precedence over those added
    /// earlier, and all of them over [`Defaults`](crate::Defaults) and thus over the markers of
    /// [`error`](campanile_core::error).
    pub fn with_classifier(mut self, classifier: impl Classify) -> Self {
        self.policies_mut().classifiers.insert(0, Arc::new(classifier));
        self
    }

    /// Replaces the extractor.
    #[doc(hidden)]
    pub fn with_key<F>(self, key: F) -> IdempotencyLayer<F, C> {
        let Self { policies, settings, key: _, codec } = self;
        IdempotencyLayer { policies, settings, key: Arc::new(key), codec }
    }

    /// Returns the parts of the layer that a response future needs.
    pub(crate) fn parts(&self) -> LayerParts<C> {
        LayerParts {
            policies: self.policies.clone(),
            settings: self.settings.clone(),
            codec: self.codec.clone(),
        }
    }

    fn policies_mut(&mut self) -> &mut Policies {
        Arc::make_mut(&mut self.policies)
    }

    fn settings_mut(&mut self) -> &mut LockSettings {
        Arc::make_mut(&mut self.settings)
    }

    fn set_retention(
        mut self,
        name: &str,
        min: Duration,
        retention: Duration,
        field: fn(&mut Retention) -> &mut Duration,
    ) -> Result<Self, ConfigError> {
        const MAX_RETENTION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        if !(min..=MAX_RETENTION).contains(&retention) {
            return Err(ConfigError::new(format!(
                "{name} must be between {min:?} and 10 years, got {retention:?}"
            )));
        }
        *field(&mut self.settings_mut().retention) = retention;
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
            policies: self.policies.clone(),
            settings: self.settings.clone(),
            key: self.key.clone(),
            codec: self.codec.clone(),
        }
    }
}

impl<E, C> fmt::Debug for IdempotencyLayer<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("namespace", &self.policies.namespace)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
