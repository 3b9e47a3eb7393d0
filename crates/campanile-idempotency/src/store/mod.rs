//! What keeps the entries.
//!
//! A store applies [`Command`]s: each is one [`step`](campanile_core::step) of the protocol on one
//! entry, atomic, decided by the store's own clock. Write one by implementing
//! [`Store::apply`] with an `async fn`; for a database that has only compare-and-set there is
//! [`EntryStore`] with [`Stepped`].
//!
//! A store that is written elsewhere is held against the contract by the suite in `campanile-test`.

mod boxed;
mod cached;
mod error;
mod stepped;

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Answer, Command, FencingToken, Operation, Reply, Retention, StoreKey};
use futures_util::future::join_all;

pub use self::boxed::BoxStore;
pub use self::cached::Cached;
pub use self::error::{StoreError, StoreErrorKind};
pub use self::stepped::{EntryStore, Stepped};

/// Keeps one entry for each key, and applies the protocol's operations to it.
///
/// # What must hold
/// * A command is applied at once or not at all, and commands on one key one after the other.
/// * The answer is [`step`](campanile_core::step)'s for the entry as it was and the store's clock.
/// * What is stored but cannot be read answers [`Reply::Corrupt`]
///   and is left as it is; it is never taken for absent.
/// * Every call ends in bounded time. An error means that the command *may* have been applied: the
///   caller repeats it, which the protocol allows.
///
/// # Cancellation
/// A future that is dropped leaves the same doubt as an error.
///
/// # Clones
/// They are handles of one store. The lock keeper has two, of which one is
/// [separate](Self::separate).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "use `MemoryStore`, `RedisStore`, or implement `Store` (or `EntryStore`, with `Stepped`)"
)]
pub trait Store: Clone + Send + Sync + 'static {
    /// Applies one command.
    fn apply(&self, command: Command) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// Applies several, and answers in their order. Their keys are distinct.
    ///
    /// One that fails does not touch the others. The default applies them side by side; a store
    /// behind a network should send them together.
    fn apply_batch(
        &self,
        batch: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Answer, StoreError>>> + Send {
        join_all(batch.into_iter().map(|command| self.apply(command)))
    }

    /// The most commands that one batch should have. Default: 64, because a larger one blocks the
    /// server for others without being cheaper.
    fn max_batch(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
        DEFAULT
    }

    /// The longest that a call may take, by the store's own time-outs. The lock keeper waits for a call
    /// a sixth of the lock's time to live, and at most 5 s; it warns of a store that may take longer,
    /// whose late answers are lost. Default: it is not known.
    fn longest_call(&self) -> Option<Duration> {
        None
    }

    /// Returns a handle of the same store that shares no connection with this one. The lock keeper
    /// renews through it, on a thread of its own: a connection belongs to the runtime that made it, and
    /// the program's may be blocked. Default: a clone, for stores without connections.
    fn separate(&self) -> Self {
        self.clone()
    }

    /// Opens a key again that was given up: what is produced for it from now on is processed, with all
    /// its attempts. For an operator who brings a dead letter back: first this, then the record. With
    /// `force` also a key that is COMPLETED, or exhausted and not buried.
    ///
    /// The token is the entry's, which a dead letter carries; with another one nothing is changed
    /// ([`Reply::Lost`]), for somebody was faster.
    /// [`Reply::Reopened`]: done.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply).
    fn redrive(
        &self,
        key: StoreKey,
        token: FencingToken,
        force: bool,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        let operation = Operation::Redrive { token, force };
        let command = Command { key, operation, retention: Retention::default() };
        async { Ok(self.apply(command).await?.reply) }
    }

    /// Erases the type; what comes of it is a store, too.
    fn boxed(self) -> BoxStore
    where
        Self: Sized,
    {
        BoxStore::new(self)
    }
}

impl<S: Store> Store for Arc<S> {
    fn apply(&self, command: Command) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        (**self).apply(command)
    }

    fn apply_batch(
        &self,
        batch: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Answer, StoreError>>> + Send {
        (**self).apply_batch(batch)
    }

    fn max_batch(&self) -> NonZeroUsize {
        (**self).max_batch()
    }

    fn longest_call(&self) -> Option<Duration> {
        (**self).longest_call()
    }

    fn separate(&self) -> Self {
        Self::new((**self).separate())
    }
}
