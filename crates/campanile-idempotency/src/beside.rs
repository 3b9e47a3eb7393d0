//! For who completes an entry beside the keeper, in one transaction with the handler's effect.
//!
//! The layer's part is small: it says what the entry is to become, and, where the
//! [`Lock`] says that the entry was completed, it has nothing left to record.

use campanile_core::{BoxError, Command, Lock, LockControl, Operation, Record, StoreKey};

use crate::future::encode;
use crate::keeper::LockKeeper;
use crate::layer::IdempotencyLayer;
use crate::reply::ReplyCodec;

impl<E, C> IdempotencyLayer<E, C> {
    /// Whether its locks are this keeper's.
    #[doc(hidden)]
    pub fn is_kept_by(&self, keeper: &LockKeeper) -> bool {
        self.guard.keeper.is(keeper)
    }

    /// What completes the entry under this lock, with this reply to this record.
    ///
    /// # Errors
    /// As the policy for replies that are too large says, and what the codec's check says.
    #[doc(hidden)]
    pub fn completion<T>(
        &self,
        lock: &Lock,
        record: Option<&Record>,
        reply: &T,
    ) -> Result<Command, BoxError>
    where
        C: ReplyCodec<T>,
    {
        let reply = encode(&self.shared(), lock.key(), record, reply)?;
        let attempt = u16::try_from(lock.attempt()).unwrap_or(u16::MAX);
        let operation =
            Operation::Complete { grant: lock.grant(), attempt, fingerprint: None, reply };
        Ok(self.command(lock, operation))
    }

    /// What asks how the entry under this lock stands: a renewal.
    #[doc(hidden)]
    pub fn renewal(&self, lock: &Lock) -> Command {
        self.command(lock, Operation::Renew { grant: lock.grant(), ttl: self.terms.ttl })
    }

    fn command(&self, lock: &Lock, operation: Operation) -> Command {
        Command { key: self.store_key(lock), operation, retention: self.terms.retention }
    }

    /// Returns the control of this lock, as long as the layer holds it: for a store that has completed
    /// the entry together with the handler's effect, or found that it is another grant's.
    #[doc(hidden)]
    pub fn control(&self, lock: &Lock) -> Option<LockControl> {
        self.guard.keeper.control(&self.store_key(lock), lock)
    }

    /// Under which the store keeps the entry of this lock.
    #[doc(hidden)]
    pub fn store_key(&self, lock: &Lock) -> StoreKey {
        StoreKey::new(self.guard.namespace.clone(), lock.key().clone())
    }
}
