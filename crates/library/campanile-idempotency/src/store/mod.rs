//! The stores that keep the entries.
//!
//! A store applies [`Command`]s. Each command is one [`step`](campanile_core::step) of the protocol
//! on one entry: it is atomic, and the store's own clock decides. Implement [`Store::apply`] with
//! an `async fn`; for a database that only has compare-and-set, implement [`EntryStore`] and use
//! [`Stepped`].
//!
//! The crate `campanile-test` has a test suite that checks custom stores against the contract.

mod error;
mod expire;
mod inspect;
mod stepped;

use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use campanile_core::{Answer, Command, FencingToken, Operation, Reply, Retention, StoreKey};
use futures_util::future::join_all;

pub use self::error::{StoreError, StoreErrorKind};
pub use self::expire::ExpireStore;
pub use self::inspect::{Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage};
pub use self::stepped::{EntryStore, Stepped};

/// Keeps one entry per key, and applies the protocol's operations to it.
///
/// # Contract
/// * A command is applied atomically, and the commands on one key are applied one after another.
/// * The answer is that of [`step`](campanile_core::step) for the previous entry and the store's
///   clock.
/// * A stored value that cannot be read is answered with [`Reply::Corrupt`] and left unchanged. It
///   is never treated as absent.
/// * Every call ends in bounded time. After an error the command *may* have been applied: the
///   caller repeats it, which the protocol allows.
///
/// # Cancellation
/// A dropped future leaves the same uncertainty as an error.
///
/// # Clones
/// Clones are handles to the same store. The lock keeper has two, one of which is
/// [separate](Self::for_renewals).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "use `MemoryStore`, `RedisStore`, or implement `Store` (or `EntryStore`, with `Stepped`)"
)]
pub trait Store: Clone + Send + Sync + 'static {
    /// Applies one command.
    fn apply(&self, command: Command) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// Applies several commands with distinct keys. The answers are in the same order.
    ///
    /// The failure of one command does not affect the others. By default, the commands are applied
    /// concurrently; a store behind a network should send them together.
    fn apply_batch(
        &self,
        batch: Vec<Command>,
    ) -> impl Future<Output = Vec<Result<Answer, StoreError>>> + Send {
        join_all(batch.into_iter().map(|command| self.apply(command)))
    }

    /// Limits the number of commands in a batch. Default: 64, because larger batches block the
    /// server for other clients without reducing the cost per command.
    fn max_batch(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
        DEFAULT
    }

    /// The store's own timeouts end a call of [`apply`](Self::apply) or
    /// [`apply_batch`](Self::apply_batch) after this time, including the time to connect. Default:
    /// `None`, for a store without timeouts, or with unknown ones.
    ///
    /// The lock keeper waits for a call for a sixth of the lock's TTL, and at most 5 s, and then
    /// drops it. It logs a warning if this duration is longer, because answers that arrive later are
    /// lost. The duration is used for nothing else.
    fn max_call_duration(&self) -> Option<Duration> {
        None
    }

    /// Creates a handle to the same store that shares no connection with this one. Default: a
    /// clone, for stores without connections.
    ///
    /// The lock keeper renews locks through this handle, on its own thread: a connection belongs to
    /// the runtime that created it, and the application's runtime may be blocked.
    fn for_renewals(&self) -> Self {
        self.clone()
    }

    /// Reopens a key that was given up: records produced for it from now on are processed, with all
    /// their attempts. With `force`, also reopens keys that are COMPLETED, or exhausted and not yet
    /// rejected.
    ///
    /// To replay a dead letter, an operator first reopens the key and then produces the record
    /// again. The token is that of the entry, and the dead letter carries it.
    ///
    /// | reply | the entry |
    /// |---|---|
    /// | [`Reply::Reopened`] | is reopened, or was already. Produce the record. |
    /// | [`Reply::Lost`] | has expired or is absent: produce the record. Or it has another token: use the copy of the dead letter with the highest one. |
    /// | [`Reply::Settled`] with COMPLETED | was processed. Only `force` reopens it. |
    /// | `Settled` with PROCESSING | has an owner, or its lock is left from one. Wait for the lock; `force` does not take it away. |
    /// | `Settled` with RETRYING | is not given up. It has attempts left, or is exhausted: then only `force` reopens it. |
    ///
    /// Except for `Reopened`, the entry is unchanged.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    /// A store that says nothing about itself.
    #[derive(Clone)]
    struct Minimal(MemoryStore);

    impl Store for Minimal {
        async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
            self.0.apply(command).await
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let store = Minimal(MemoryStore::new());
        assert_eq!((store.max_batch().get(), store.max_call_duration()), (64, None));
    }
}
