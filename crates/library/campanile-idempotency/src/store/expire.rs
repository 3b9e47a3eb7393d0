//! Changing when entries expire, for operators and tools.

use std::future::Future;
use std::time::Duration;

use campanile_core::{Entry, ExpireOutcome, StoreKey};

use super::{InspectStore, StoreError};

/// A store whose entries can be given another time at which they expire.
///
/// A [`Store`](super::Store) for applications does not need it; it is for tools.
pub trait ExpireStore: InspectStore {
    /// Sets when these entries expire: `after` from now by the store's clock, or at once if it is zero.
    /// The outcomes are in the same order.
    ///
    /// Each entry is changed atomically, and only as [`expire`](campanile_core::expire) decides: if it
    /// is still the one that was read, and neither locked nor granted a moment ago. The keys are
    /// distinct and of one namespace. Pass at most [`max_batch`](super::Store::max_batch) entries, so
    /// that the store is not blocked for long.
    ///
    /// # Errors
    /// If the store does not answer, or if the user may not do this. Some entries may have been changed.
    /// Those are [`Changed`](ExpireOutcome::Changed) when the call is repeated, if they have expired.
    fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> impl Future<Output = Result<Vec<ExpireOutcome>, StoreError>> + Send;
}
