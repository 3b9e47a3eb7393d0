//! How layers reach the keeper.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use campanile_core::{Clock, ConfigError, Fingerprint, Interrupt, Lock, LockControl, StoreKey};
use tokio::sync::oneshot;

use super::background::Background;
use super::calls::{self, CALL_LIMIT, call_limit};
use super::request::{Acquire, Acquisition, Terms};
use super::shared::{Handle, Shared};
use super::slot::draw_owner;
use crate::store::Store;

/// The keeper of all locks that its layers hold. Cheap to clone; layers of one process should share
/// one.
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
    handle: Handle,
    /// Of the store's calls.
    longest_call: Option<Duration>,
}

impl LockKeeper {
    /// A keeper with a background thread, which renews locks over connections of its own.
    ///
    /// Other commands are sent on the runtime from which they are given: of tokio, with its I/O and its
    /// timers enabled where the store has a network between. What is given outside of a runtime, such
    /// as a lock that is dropped there, is sent by the thread.
    ///
    /// The thread ends when all handles and layers are gone and what they left is settled.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be started.
    pub fn new(store: impl Store) -> Result<Self, ConfigError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(
            |error| ConfigError::new(format!("no runtime for the lock keeper: {error}")),
        )?;
        let (keeper, background) = Self::unspawned(store, Clock::boot());
        thread::Builder::new()
            .name("campanile-keeper".into())
            .spawn(move || runtime.block_on(background))
            .map_err(|error| ConfigError::new(format!("no thread for the lock keeper: {error}")))?;
        Ok(keeper)
    }

    /// A keeper whose background is a future, for tests on a runtime with paused time, with its clock.
    ///
    /// Nothing is renewed or repeated while nobody polls it. Once it is dropped, all locks are lost and
    /// every request is answered with a store that is unavailable.
    pub fn unspawned(store: impl Store, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let longest_call = store.longest_call();
        calls::warn_of_longer(longest_call, CALL_LIMIT);
        let (max_batch, separate) = (store.max_batch().get(), Arc::new(store.separate()));
        let shared = Shared::new(Arc::new(store), clock.clone(), max_batch);
        let background = Background::new(shared.clone(), separate, clock);
        (Self { handle: Handle::new(shared), longest_call }, background.run())
    }

    /// Takes no new locks, and waits at most this long until those there are have been settled.
    ///
    /// For programs that end without the consumer driver, which does its own waiting.
    pub async fn shutdown(&self, at_most: Duration) -> Report {
        let (done, settled) = oneshot::channel();
        self.handle.update(|state| state.shut_down(done));
        Report { settled: matches!(tokio::time::timeout(at_most, settled).await, Ok(Ok(()))) }
    }

    /// Whether it is a handle of the same keeper.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.handle.is(&other.handle)
    }

    /// Warns if the store may take longer for a call than locks of this time to live allow.
    pub(crate) fn warn_of_short(&self, ttl: Duration) {
        calls::warn_of_longer(self.longest_call, call_limit(ttl));
    }

    /// Starts an acquisition. If the receiver is dropped, what was granted is handed back. If the
    /// keeper has stopped, the receiver finds the sender dropped.
    pub(crate) fn acquire(
        &self,
        key: StoreKey,
        terms: &Arc<Terms>,
        fingerprint: Option<Fingerprint>,
        interrupt: Option<Interrupt>,
    ) -> oneshot::Receiver<Acquisition> {
        let (reply, acquiring) = oneshot::channel();
        let (owner, terms) = (draw_owner(), terms.clone());
        let acquire = Acquire { key, owner, terms, fingerprint, interrupt, reply };
        self.handle.update(|state| state.acquire(acquire));
        acquiring
    }

    /// Returns the control of a lock that is held here under this key.
    pub(crate) fn control(&self, key: &StoreKey, lock: &Lock) -> Option<LockControl> {
        self.handle.update(|state| state.control(key, lock.grant()))
    }
}

impl fmt::Debug for LockKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKeeper").field("stopped", &self.handle.is_stopped()).finish()
    }
}

/// What [`LockKeeper::shutdown`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Whether every lock was settled, and the store has answered it.
    pub settled: bool,
}

/// What a layer can be made of: any [`Store`], for which it starts a keeper, or a [`LockKeeper`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "use `MemoryStore`, `RedisStore`, `PgStore`, a `LockKeeper` (of an `Inbox`: `inbox.keeper()`), \
            or implement `Store` (or `EntryStore`, with `Stepped`)"
)]
pub trait IntoKeeper: sealed::Sealed {
    /// The keeper.
    ///
    /// # Errors
    /// As [`LockKeeper::new`]'s.
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
