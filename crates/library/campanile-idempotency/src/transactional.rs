//! Support for stores that complete an entry in one transaction with the handler's effect.
//!
//! The layer provides the command that completes the entry. If the [`LockHandle`] then reports that the
//! entry was completed, the layer has nothing left to record.

use campanile_core::{BoxError, Command, LockControl, LockHandle, Operation, Record};

use crate::future::encode_reply;
use crate::keeper::LockKeeper;
use crate::layer::IdempotencyLayer;
use crate::reply::ReplyCodec;

impl<E, C> IdempotencyLayer<E, C> {
    /// Checks whether the layer's locks belong to this keeper.
    #[doc(hidden)]
    pub fn is_stored_by(&self, keeper: &LockKeeper) -> bool {
        self.policies.keeper.is_same(keeper)
    }

    /// Creates the command that completes the entry of this lock, with this reply to this record.
    ///
    /// # Errors
    /// If the reply is too large and the policy is to fail, or if the codec's check fails.
    #[doc(hidden)]
    pub fn completion<T>(
        &self,
        lock: &LockHandle,
        record: Option<&Record>,
        reply: &T,
    ) -> Result<Command, BoxError>
    where
        C: ReplyCodec<T>,
    {
        let reply = encode_reply(&self.parts(), lock.key(), record, reply)?;
        let attempt = u16::try_from(lock.attempt()).unwrap_or(u16::MAX);
        let operation = Operation::Complete {
            grant: lock.grant(),
            attempt,
            fingerprint: None,
            reply,
            details: self.policies.keeper.kept_details(lock),
        };
        Ok(self.command(lock, operation))
    }

    /// Creates a renewal of this lock. The reply to it shows the state of the entry.
    #[doc(hidden)]
    pub fn renewal(&self, lock: &LockHandle) -> Command {
        self.command(lock, Operation::Renew { grant: lock.grant(), ttl: self.settings.ttl })
    }

    fn command(&self, lock: &LockHandle, operation: Operation) -> Command {
        Command { key: lock.store_key().clone(), operation, retention: self.settings.retention }
    }

    /// Finds the control of this lock while the layer holds it. For stores that have completed the
    /// entry together with the handler's effect, or found that it belongs to another grant.
    #[doc(hidden)]
    pub fn control(&self, lock: &LockHandle) -> Option<LockControl> {
        self.policies.keeper.control(lock)
    }
}
