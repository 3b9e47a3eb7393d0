//! [`Observer`].

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use campanile_core::{
    BoxError, ConfigError, Coordinates, Fingerprint, IdempotencyKey, IntoKey, KeyExtractor,
    Namespace,
};
use tokio::sync::Semaphore;

use super::future::ObserveFuture;
use super::report::Reporter;
use super::run::{Run, RunOf};
use super::running::RunningKeys;
use crate::config::{CheckedConfig, IdempotencyConfig};
use crate::keeper::{IntoKeeper, LockKeeper, LockSettings};
use crate::service::{KeyAndFingerprint, extract_key};

/// The number of observations at which further requests are not observed. Each takes about a kilobyte.
const MAX_OBSERVATIONS: usize = 4096;

/// Observes functions in a loop without a tower stack: reports what a [`Runner`](crate::Runner) would
/// do, and runs every function. For the details, see [`ObserveLayer`](super::ObserveLayer).
///
/// Clones share their limit, and notice when runs of a key overlap in the process.
///
/// ```
/// use campanile_core::{BoxError, Coordinates};
/// use campanile_idempotency::{MemoryStore, Observer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let observer = Observer::new(MemoryStore::new(), "payments")?;
/// // in the loop, for each message
/// let at = Coordinates { topic: "payments".into(), partition: 0, offset: 7 };
/// let charged = observer.run("p-1", at, async || Ok::<_, BoxError>("charged")).await?;
/// assert_eq!(charged, "charged");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Observer(Arc<Parts>);

/// What the observations of an observer share.
pub(super) struct Parts {
    pub(super) keeper: LockKeeper,
    pub(super) namespace: Namespace,
    pub(super) settings: Arc<LockSettings>,
    pub(super) reporter: Reporter,
    pub(super) running: Arc<RunningKeys>,
    pub(super) permits: Arc<Semaphore>,
}

impl Parts {
    /// Checks whether an observation may wait for the end of an outage. If all did, none would be left for the
    /// requests after it.
    pub(super) fn has_room(&self) -> bool {
        self.permits.available_permits() >= MAX_OBSERVATIONS / 2
    }
}

impl Observer {
    /// Creates an observer over a store, for which it starts a keeper, or over an existing keeper.
    /// `config` may be just the name of a namespace.
    ///
    /// # Errors
    /// If a setting is out of its bounds, or if the keeper's thread cannot be started.
    pub fn new(
        store: impl IntoKeeper,
        config: impl Into<IdempotencyConfig>,
    ) -> Result<Self, ConfigError> {
        let CheckedConfig { namespace, mut settings, .. } = config.into().checked()?;
        let keeper = store.into_keeper()?;
        keeper.warn_if_ttl_short(settings.ttl);
        let reporter = Reporter::new(&namespace, settings.max_attempts);
        // Attempts never run out.
        settings.max_attempts = 0;
        settings.keep_details = true;
        Ok(Self(Arc::new(Parts {
            keeper,
            namespace,
            settings: Arc::new(settings),
            reporter,
            running: Arc::default(),
            permits: Arc::new(Semaphore::new(MAX_OBSERVATIONS)),
        })))
    }

    /// Runs `f`, and observes it meanwhile. Returns what `f` returns. `at` is the position of the record,
    /// or `None` if the function is not for a record.
    ///
    /// # Errors
    /// That of `f`, unchanged.
    ///
    /// # Cancellation
    /// See [`ObserveFuture`].
    pub async fn run<F, Fut, T, Err>(
        &self,
        key: impl IntoKey,
        at: impl Into<Option<Coordinates>>,
        f: F,
    ) -> Result<T, Err>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, Err>>,
        Err: fmt::Display,
    {
        self.run_with_fingerprint(key, None::<Fingerprint>, at, f).await
    }

    /// Does what [`run`](Self::run) does, and compares payloads: another fingerprint under the same key
    /// is reported as a mismatch. The fingerprint is kept in the entry.
    ///
    /// Use it if the later `IdempotencyLayer` has a fingerprint
    /// ([`fingerprint_by`](campanile_core::key::Key::fingerprint_by)), and compute the same one:
    /// [`Fingerprint::of`] for a single part, and a
    /// [`FingerprintHasher`](campanile_core::FingerprintHasher) for several. The fingerprint of an extractor
    /// can also be asked for: [`KeyExtractor::fingerprint`](campanile_core::KeyExtractor::fingerprint). The
    /// layer does not compare payloads with an entry that has no fingerprint.
    ///
    /// # Errors
    /// That of `f`, unchanged.
    ///
    /// # Cancellation
    /// See [`ObserveFuture`].
    pub async fn run_with_fingerprint<F, Fut, T, Err>(
        &self,
        key: impl IntoKey,
        fingerprint: impl Into<Option<Fingerprint>>,
        at: impl Into<Option<Coordinates>>,
        f: F,
    ) -> Result<T, Err>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, Err>>,
        Err: fmt::Display,
    {
        let fingerprint = fingerprint.into();
        let key = self.extract_key(&given_key, &key.into_key());
        let key = key.map(|key| key.map(|(key, _)| (key, fingerprint)));
        let mut run = Run::start(self, key, RunOf::function(at.into()));
        let inner = run.catch_panic(f);
        ObserveFuture::new(inner, run).await
    }

    pub(super) fn parts(&self) -> &Arc<Parts> {
        &self.0
    }

    pub(super) fn extract_key<R>(
        &self,
        extractor: &impl KeyExtractor<R>,
        request: &R,
    ) -> Result<Option<KeyAndFingerprint>, BoxError> {
        extract_key(extractor, &self.0.namespace, request)
    }
}

/// The extractor of a key that the caller has passed.
fn given_key(
    key: &Result<Option<IdempotencyKey>, BoxError>,
) -> Result<Option<IdempotencyKey>, String> {
    key.as_ref().cloned().map_err(ToString::to_string)
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("namespace", &self.0.namespace)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
