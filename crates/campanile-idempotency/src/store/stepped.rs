//! A store on top of compare-and-set.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, Entry, StoreKey, step};

use super::{Store, StoreError};

/// A database that can load an entry and swap it if nobody changed it meanwhile. [`Stepped`] makes
/// a [`Store`] of it.
pub trait EntryStore: Clone + Send + Sync + 'static {
    /// What a swap compares: a revision number, the old bytes, an ETag.
    type Version: Send;

    /// The entry as it stands, its version (also of one that is absent), and the database's clock.
    ///
    /// # Errors
    /// [`StoreError::unreadable`] for what is there but cannot be read; it is never absent.
    fn load(
        &self,
        key: &StoreKey,
    ) -> impl Future<Output = Result<(Option<Entry>, Self::Version, SystemTime), StoreError>> + Send;

    /// Returns a handle that shares no connection with this one, as [`Store::separate`]. Default: a
    /// clone.
    fn separate(&self) -> Self {
        self.clone()
    }

    /// Writes the entry, to be kept for `retention`, if the version is still this one; says whether
    /// it was.
    ///
    /// # Errors
    /// When it is not known whether it was.
    fn swap(
        &self,
        key: &StoreKey,
        version: Self::Version,
        entry: Entry,
        retention: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// Runs the protocol over an [`EntryStore`]: load, [`step`], swap, and again if somebody was faster.
#[derive(Clone)]
pub struct Stepped<S>(S);

impl<S: EntryStore> Stepped<S> {
    /// A store over this database.
    pub fn new(entries: S) -> Self {
        Self(entries)
    }
}

impl<S: EntryStore> Store for Stepped<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        // Each round lost means that another command won, so the whole goes on; the bound is
        // against a `swap` that never succeeds.
        const ROUNDS: usize = 1000;
        for _ in 0..ROUNDS {
            let (before, version, now) = self.0.load(&command.key).await?;
            let (after, reply) = step(before.clone(), &command.operation, now);
            let answer = Answer::new(now, reply);
            let Some(entry) = after.filter(|after| before.as_ref() != Some(after)) else {
                return Ok(answer);
            };
            let retention = command.retention.of(entry.state());
            if self.0.swap(&command.key, version, entry, retention).await? {
                return Ok(answer);
            }
        }
        Err(StoreError::unavailable(format!("no swap succeeded in {ROUNDS} rounds")))
    }

    fn separate(&self) -> Self {
        Self(self.0.separate())
    }
}

impl<S> fmt::Debug for Stepped<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stepped<{}>", std::any::type_name::<S>())
    }
}
