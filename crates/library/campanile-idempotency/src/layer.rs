//! [`IdempotencyLayer`] and its policies.

use std::fmt;
use std::sync::Arc;

use campanile_core::{Classify, ConfigError, IdempotencyKey, Namespace};
use tower_layer::Layer;

use crate::backoff::Backoff;
use crate::config::{CheckedConfig, IdempotencyConfig};
use crate::keeper::{IntoKeeper, LockKeeper, LockSettings};
use crate::policy::{OnDropped, OnExhausted, OnLargeReply, OnLocked, OnLost, OnMissingKey};
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
/// use campanile_core::{BoxError, WithLock, Outcome};
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
///     .map_request(WithLock::new)
///     // one lock for each job
///     .layer(IdempotencyLayer::new(MemoryStore::new(), "jobs", |job: &WithLock<Job>| job.id)?)
///     .service_fn(async |_: WithLock<Job>| Ok::<_, BoxError>("done"));
///
/// let first = service.ready().await?.call(Job { id: 7 }).await?;
/// assert_eq!(first, Outcome::Processed("done"));
/// assert!(service.ready().await?.call(Job { id: 7 }).await?.is_duplicate());
/// # Ok(())
/// # }
/// ```
#[must_use]
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
    pub(crate) dropped: OnDropped,
    pub(crate) exhausted: OnExhausted,
    pub(crate) fail_open: Option<Arc<FailOpen>>,
    pub(crate) classifiers: Vec<Arc<dyn Classify>>,
    pub(crate) backoff: Backoff,
    pub(crate) max_reply_bytes: usize,
    pub(crate) large_reply: OnLargeReply,
    pub(crate) cipher: Option<Arc<dyn ReplyCipher>>,
    /// Whether the handler's effect is rolled back unless the key is completed.
    pub(crate) rolls_back: bool,
}

/// The parts of a layer except its extractor.
pub(crate) struct LayerParts<C> {
    pub(crate) policies: Arc<Policies>,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) codec: Arc<C>,
}

pub(crate) type FailOpen = dyn Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync;

impl<E> IdempotencyLayer<E> {
    /// Creates a layer over a store, for which it starts a keeper, or over an existing keeper.
    /// `config` may be just the name of a namespace. The extractor `key` finds a request's key.
    ///
    /// # Errors
    /// If a setting is out of its bounds, or if the keeper's thread cannot be started.
    pub fn new(
        store: impl IntoKeeper,
        config: impl Into<IdempotencyConfig>,
        key: E,
    ) -> Result<Self, ConfigError>
    where
        E: Send + Sync + 'static,
    {
        let CheckedConfig { namespace, settings, backoff, max_reply_bytes } =
            config.into().checked()?;
        let keeper = store.into_keeper()?;
        keeper.warn_if_ttl_short(settings.ttl);
        Ok(Self {
            policies: Arc::new(Policies {
                keeper,
                namespace,
                missing_key: OnMissingKey::default(),
                locked: OnLocked::default(),
                lost: OnLost::default(),
                dropped: OnDropped::default(),
                exhausted: OnExhausted::default(),
                fail_open: None,
                classifiers: Vec::new(),
                backoff,
                max_reply_bytes,
                large_reply: OnLargeReply::default(),
                cipher: None,
                rolls_back: false,
            }),
            settings: Arc::new(settings),
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

    /// Encrypts the replies that are kept and the results of steps, and decrypts them for duplicates and
    /// later attempts. Default: replies are kept as the codec encodes them, and results as JSON.
    pub fn with_reply_encryption(mut self, cipher: impl ReplyCipher) -> Self {
        self.policies_mut().cipher = Some(Arc::new(cipher));
        self
    }

    /// Sets the policy for larger replies. Default: the entry is completed without the reply.
    pub fn on_large_reply(mut self, policy: OnLargeReply) -> Self {
        self.policies_mut().large_reply = policy;
        self
    }

    /// Sets the policy for requests without a key. Default: they are rejected.
    pub fn on_missing_key(mut self, policy: OnMissingKey) -> Self {
        self.policies_mut().missing_key = policy;
        self
    }

    /// Sets the policy for keys that another owner holds. Default: an error.
    pub fn on_locked(mut self, policy: OnLocked) -> Self {
        self.policies_mut().locked = policy;
        self
    }

    /// Sets the policy for locks that are lost while the inner service is running. Default: cancel.
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.policies_mut().lost = policy;
        self
    }

    /// Sets the policy for response futures that are dropped while the inner service is running.
    /// Default: a failed attempt.
    pub fn on_dropped(mut self, policy: OnDropped) -> Self {
        self.policies_mut().dropped = policy;
        self
    }

    /// Sets the policy for keys that get no further attempt. Default: [`OnExhausted::ReturnLock`]. The
    /// request fails, and its error contains the lock under which the consumer publishes the dead
    /// letter. Change the policy only for stacks without a consumer.
    pub fn on_exhausted(mut self, policy: OnExhausted) -> Self {
        self.policies_mut().exhausted = policy;
        self
    }

    /// Lets requests through without a lock if the store is unavailable and this predicate returns
    /// `true`.
    ///
    /// The outcome is then [`WithoutLock`](campanile_core::Outcome::WithoutLock), nothing is recorded,
    /// and **every duplicate runs**, including later ones. Default: never.
    ///
    /// The predicate is not called for an entry that cannot be read
    /// ([`Unreadable`](crate::StoreErrorKind::Unreadable)) or found
    /// ([`Misconfigured`](crate::StoreErrorKind::Misconfigured)): the store is available, and the key may
    /// have been completed. Such a request fails with the store's error.
    pub fn with_fail_open_risking_duplicates(
        mut self,
        when: impl Fn(&IdempotencyKey, &StoreError) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policies_mut().fail_open = Some(Arc::new(when));
        self
    }

    /// Adds a classifier for errors of the inner service. Classifiers are asked in the order in which
    /// they were added: the first one that returns a disposition takes precedence over those added
    /// later, and all of them over [`Defaults`](crate::Defaults) and thus over the markers of
    /// [`error`](campanile_core::error).
    pub fn with_classifier(mut self, classifier: impl Classify) -> Self {
        self.policies_mut().classifiers.push(Arc::new(classifier));
        self
    }

    /// Adds a classifier that takes precedence over all others.
    #[doc(hidden)]
    pub fn with_first_classifier(mut self, classifier: impl Classify) -> Self {
        self.policies_mut().classifiers.insert(0, Arc::new(classifier));
        self
    }

    /// Declares that the handler's effect is rolled back unless the key is completed. The loss of a
    /// lock is then not reported as a possible double effect.
    #[doc(hidden)]
    pub fn with_rollback(mut self) -> Self {
        self.policies_mut().rolls_back = true;
        self
    }

    /// Replaces the extractor.
    #[doc(hidden)]
    pub fn with_key<F>(self, key: F) -> IdempotencyLayer<F, C> {
        let Self { policies, settings, key: _, codec } = self;
        IdempotencyLayer { policies, settings, key: Arc::new(key), codec }
    }

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
