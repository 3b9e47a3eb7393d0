//! A store based on compare-and-set.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, Entry, StoreKey, step};

use super::{Store, StoreError};

/// A database that can load an entry, and swap it if it has not changed since. [`Stepped`] turns it
/// into a [`Store`].
///
/// This one is a map in memory, in which the version is a revision number. A database with conditional
/// writes does the same in two requests; the crate `campanile-dynamodb` is an example.
///
/// ```
/// use campanile_core::{BoxError, Entry, StoreKey};
/// use campanile_idempotency::{EntryStore, Runner, Stepped, StoreError};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex, PoisonError};
/// use std::time::{Duration, SystemTime};
///
/// struct Row {
///     revision: u64,
///     bytes: Vec<u8>,
///     expires_at: SystemTime,
/// }
///
/// #[derive(Clone, Default)]
/// struct Map(Arc<Mutex<HashMap<StoreKey, Row>>>);
///
/// impl EntryStore for Map {
///     type Version = u64;
///
///     async fn load(
///         &self,
///         key: &StoreKey,
///     ) -> Result<(Option<Entry>, u64, SystemTime), StoreError> {
///         let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         let now = SystemTime::now(); // the database's clock, if it has one
///         let Some(row) = rows.get(key) else {
///             return Ok((None, 0, now));
///         };
///         let entry = Entry::from_bytes(&row.bytes).map_err(StoreError::unreadable)?;
///         // An expired entry is absent, and the row still has its version.
///         Ok(((now < row.expires_at).then_some(entry), row.revision, now))
///     }
///
///     async fn swap(
///         &self,
///         key: &StoreKey,
///         version: u64,
///         entry: Entry,
///         retention: Duration,
///     ) -> Result<bool, StoreError> {
///         let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         if rows.get(key).map_or(0, |row| row.revision) != version {
///             return Ok(false);
///         }
///         let expires_at = SystemTime::now() + retention;
///         let bytes = entry.to_bytes().to_vec();
///         rows.insert(key.clone(), Row { revision: version + 1, bytes, expires_at });
///         Ok(true)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let runner = Runner::new(Stepped::new(Map::default()), "jobs")?;
/// let job = async |_lock| Ok::<_, BoxError>("done");
/// assert!(!runner.run("job-1", job).await?.is_duplicate());
/// assert!(runner.run("job-1", job).await?.is_duplicate());
/// # Ok(())
/// # }
/// ```
pub trait EntryStore: Clone + Send + Sync + 'static {
    /// What a swap compares: a revision number, the previous bytes, or an ETag.
    type Version: Send;

    /// Loads the current entry, its version (also if the entry is absent), and the database's
    /// clock.
    ///
    /// # Errors
    /// [`StoreError::unreadable`] for a value that cannot be read; it is never treated as absent.
    fn load(
        &self,
        key: &StoreKey,
    ) -> impl Future<Output = Result<(Option<Entry>, Self::Version, SystemTime), StoreError>> + Send;

    /// Creates a handle that shares no connection with this one; see [`Store::for_renewals`].
    /// Default: a clone.
    fn for_renewals(&self) -> Self {
        self.clone()
    }

    /// Writes the entry with this retention if the version is unchanged, and reports whether the
    /// entry was written. It may report `false` for an entry that was written, as a client library does
    /// that sends a write twice.
    ///
    /// # Errors
    /// If it is unknown whether the entry was written.
    fn swap(
        &self,
        key: &StoreKey,
        version: Self::Version,
        entry: Entry,
        retention: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// Runs the protocol over an [`EntryStore`]: load, [`step`], swap, and again if the entry has
/// changed in between.
#[derive(Clone)]
pub struct Stepped<S>(S);

impl<S: EntryStore> Stepped<S> {
    /// Creates a store over this database.
    pub fn new(entries: S) -> Self {
        Self(entries)
    }
}

impl<S: EntryStore> Store for Stepped<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        // Each lost round means that another command succeeded, so the system as a whole makes
        // progress. The limit guards against a `swap` that never succeeds.
        const MAX_ROUNDS: usize = 1000;
        for round in 0..MAX_ROUNDS {
            // A client library may have repeated a swap that was applied, and then reports that the
            // entry has changed.
            let error = |error: StoreError| if round == 0 { error } else { error.possibly_sent() };
            let (before, version, now) = self.0.load(&command.key).await.map_err(error)?;
            let (after, reply) = step(before.clone(), &command.operation, now);
            let answer = Answer::new(now, reply);
            let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) else {
                return Ok(answer);
            };
            let retention = command.retention.of(entry.state());
            if self.0.swap(&command.key, version, entry, retention).await.map_err(error)? {
                return Ok(answer);
            }
        }
        Err(StoreError::unavailable(format!("the entry was not swapped in {MAX_ROUNDS} rounds")))
    }

    fn for_renewals(&self) -> Self {
        Self(self.0.for_renewals())
    }
}

impl<S> fmt::Debug for Stepped<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stepped<{}>", std::any::type_name::<S>())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use campanile_core::{FencingToken, Namespace, Operation, Owner, Retention};

    use super::*;

    /// Entries that have always changed, and cannot be loaded after this many loads.
    #[derive(Clone)]
    struct Changing {
        loads: Arc<AtomicUsize>,
        max_loads: usize,
    }

    impl EntryStore for Changing {
        type Version = ();

        async fn load(&self, _: &StoreKey) -> Result<(Option<Entry>, (), SystemTime), StoreError> {
            match self.loads.fetch_add(1, Ordering::Relaxed) < self.max_loads {
                true => Ok((None, (), SystemTime::UNIX_EPOCH)),
                false => Err(StoreError::not_sent("refused")),
            }
        }

        async fn swap(
            &self,
            _: &StoreKey,
            _: (),
            _: Entry,
            _: Duration,
        ) -> Result<bool, StoreError> {
            Ok(false)
        }
    }

    #[tokio::test]
    async fn error_after_a_swap_may_be_that_of_an_applied_command() {
        for max_loads in 0..2 {
            let store = Stepped::new(Changing { loads: Arc::default(), max_loads });
            let command = Command {
                key: StoreKey::from_digest(Namespace::try_from("a").unwrap(), [0; 16]),
                operation: Operation::Acquire {
                    owner: Owner::new(1).unwrap(),
                    ttl: Duration::from_secs(30),
                    max_attempts: 8,
                    fingerprint: None,
                    floor: FencingToken::ZERO,
                    details: None,
                },
                retention: Retention::default(),
            };
            let error = store.apply(command).await.unwrap_err();
            assert_eq!(error.was_sent(), max_loads > 0, "after {max_loads} loads");
        }
    }
}
