//! The handle through which layers use the keeper.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use campanile_core::{
    Clock, ConfigError, Details, Fingerprint, Interrupt, LockControl, LockHandle,
};
use tokio::runtime;
use tokio::sync::oneshot;

use super::background::Background;
use super::calls::{self, CALL_TIMEOUT, call_timeout};
use super::instance;
use super::request::{AcquireRequest, Acquisition, LockKey, LockSettings, RunSite};
use super::shared::{KeeperHandle, KeeperShared};
use super::slot::new_nonce;
use super::steps::StepResult;
use crate::store::Store;

/// A handle to the keeper of all locks that its layers hold. Cheap to clone. The layers of a
/// process should share one keeper.
///
/// ```
/// use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
/// use campanile_core::{ConfigError, key};
///
/// # fn main() -> Result<(), ConfigError> {
/// let keeper = LockKeeper::new(MemoryStore::new())?;
/// let payments = IdempotencyLayer::new(&keeper, "payments", key::header("id"))?;
/// let refunds = IdempotencyLayer::new(&keeper, "refunds", key::header("id"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockKeeper {
    handle: KeeperHandle,
    instance: Arc<str>,
    /// The longest call of the store, if known.
    max_call_duration: Option<Duration>,
}

impl LockKeeper {
    /// Creates a keeper with a background thread, which renews locks over its own connections.
    ///
    /// Other commands are sent on the tokio runtime of their caller, and callers on several runtimes
    /// share calls: a runtime that is blocked delays the commands of the others, by at most 5 s or a
    /// sixth of the TTL. Give such a runtime a keeper of its own. The I/O and time drivers of a runtime
    /// must be enabled if the store is behind a network. Commands from outside a runtime, for example of
    /// a lock that is dropped there, are sent by the thread.
    ///
    /// The thread ends when all handles and layers are dropped and the remaining locks are settled.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be started.
    pub fn new(store: impl Store) -> Result<Self, ConfigError> {
        let (keeper, background) = Self::pair(store, Clock::boot());
        let failed = |error: io::Error| {
            ConfigError::new(format!("failed to start the lock keeper's thread: {error}"))
        };
        // The thread builds the runtime, because one that is dropped here, if the thread cannot be
        // spawned, would panic in an async context.
        let (started, starting) = mpsc::sync_channel(1);
        let run = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                drop(started.send(Ok(())));
                runtime.block_on(background);
            }
            Err(error) => drop(started.send(Err(error))),
        };
        thread::Builder::new().name("campanile-keeper".into()).spawn(run).map_err(failed)?;
        starting.recv().expect("the thread sends a result").map_err(failed)?;
        Ok(keeper)
    }

    /// Creates a keeper with this clock, and its background task, which the caller spawns. For
    /// tests on a runtime with paused time; otherwise use [`new`](Self::new), which runs the task
    /// on a thread of its own.
    ///
    /// Nothing is renewed or repeated unless the task is polled. Once the task is dropped, all locks
    /// are lost and every request fails because the store is unavailable.
    pub fn pair(store: impl Store, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let max_call_duration = store.max_call_duration();
        calls::warn_if_calls_long(max_call_duration, CALL_TIMEOUT);
        let (max_batch, separate) = (store.max_batch().get(), Arc::new(store.for_renewals()));
        let shared = KeeperShared::new(Arc::new(store), clock.clone(), max_batch);
        let background = Background::new(shared.clone(), separate, clock);
        let (handle, instance) = (KeeperHandle::new(shared), instance::default_name());
        (Self { handle, instance, max_call_duration }, background.run())
    }

    /// Sets the name of this process, which entries contain while it holds their lock: at most 255
    /// bytes. Default: the name of the host and the process id, as in `payments-7d9f/1`.
    ///
    /// It applies to layers that are created from the returned handle.
    #[must_use]
    pub fn with_instance(mut self, name: impl Into<Arc<str>>) -> Self {
        self.instance = name.into();
        self
    }

    /// Stops granting locks, and waits at most this long until all held locks are settled.
    ///
    /// For applications without the consumer driver, which waits by itself.
    pub async fn shutdown(&self, at_most: Duration) -> ShutdownReport {
        let (done, settled) = oneshot::channel();
        self.handle.update(|state| state.shut_down(done));
        ShutdownReport {
            settled: matches!(tokio::time::timeout(at_most, settled).await, Ok(Ok(()))),
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.handle.is_same(&other.handle)
    }

    /// Logs a warning if the store may take longer for a call than locks with this TTL allow.
    pub(crate) fn warn_if_ttl_short(&self, ttl: Duration) {
        calls::warn_if_calls_long(self.max_call_duration, call_timeout(ttl));
    }

    /// Starts an acquisition. If the receiver is dropped, a granted lock is released. If the keeper
    /// has stopped, the sender is dropped.
    pub(crate) fn acquire(
        &self,
        key: LockKey,
        settings: &Arc<LockSettings>,
        fingerprint: Option<Fingerprint>,
        site: &RunSite,
        interrupt: Option<Interrupt>,
    ) -> oneshot::Receiver<Acquisition> {
        let (reply, acquiring) = oneshot::channel();
        let owner = new_nonce();
        let mut details = Details::builder(owner).instance(&self.instance);
        if settings.store_keys {
            details = details.key(&key.idempotency_key);
        }
        if let Some(coordinates) = &site.coordinates {
            details = details.coordinates(coordinates);
        }
        if let Some(trace) = &site.trace {
            details = details.trace(trace);
        }
        let acquire = AcquireRequest {
            key,
            owner,
            settings: settings.clone(),
            fingerprint,
            details: details.build(),
            interrupt,
            reply,
        };
        self.handle.update(|state| state.acquire(acquire));
        acquiring
    }

    /// Starts to record a step of the handler under its lock. If the attempt ends before, the sender is
    /// dropped.
    pub(crate) fn record_step(
        &self,
        lock: &LockHandle,
        name: &str,
        result: Bytes,
    ) -> oneshot::Receiver<StepResult> {
        let (reply, recording) = oneshot::channel();
        let key = (lock.store_key(), lock.grant());
        self.handle.update(|state| state.record_step(key, name.into(), result, reply));
        recording
    }

    pub(crate) fn control(&self, lock: &LockHandle) -> Option<LockControl> {
        self.handle.update(|state| state.control(lock.store_key(), lock.grant()))
    }

    /// Finds the details that the entry of this lock keeps once it is COMPLETED.
    pub(crate) fn kept_details(&self, lock: &LockHandle) -> Option<Details> {
        self.handle.update(|state| state.kept_details(lock.store_key(), lock.grant()))
    }
}

impl fmt::Debug for LockKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKeeper").field("stopped", &self.handle.is_stopped()).finish()
    }
}

/// The result of [`LockKeeper::shutdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "only the report shows whether all locks were settled"]
pub struct ShutdownReport {
    /// Whether every lock was settled and the store has confirmed it.
    pub settled: bool,
}

/// A type from which a layer can be created: any [`Store`], for which it starts a keeper, or a
/// [`LockKeeper`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "use `MemoryStore`, `RedisStore`, `PgStore`, a `LockKeeper` (of an `Inbox`: `inbox.keeper()`), \
            or implement `Store` (or `EntryStore`, with `Stepped`)"
)]
pub trait IntoKeeper: sealed::Sealed {
    /// Converts into a keeper.
    ///
    /// # Errors
    /// See [`LockKeeper::new`].
    fn into_keeper(self) -> Result<LockKeeper, ConfigError>;
}

#[diagnostic::do_not_recommend]
impl<S: Store> IntoKeeper for S {
    fn into_keeper(self) -> Result<LockKeeper, ConfigError> {
        LockKeeper::new(self)
    }
}

impl IntoKeeper for LockKeeper {
    fn into_keeper(self) -> Result<LockKeeper, ConfigError> {
        Ok(self)
    }
}

impl IntoKeeper for &LockKeeper {
    fn into_keeper(self) -> Result<LockKeeper, ConfigError> {
        Ok(self.clone())
    }
}

mod sealed {
    use super::{LockKeeper, Store};

    pub trait Sealed {}
    #[diagnostic::do_not_recommend]
    impl<S: Store> Sealed for S {}
    impl Sealed for LockKeeper {}
    impl Sealed for &LockKeeper {}
}
