//! The in-memory store.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Clock, Command, Entry, Retention, StoreKey, step};

use crate::store::{Store, StoreError};

/// A store that keeps entries in this process: for the quickstart, for tests, and for applications
/// with a single process in which duplicates after a restart do no harm.
///
/// It runs [`step`] under a mutex and thus follows the protocol exactly. Clones share the entries.
/// All entries are lost with the process.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    clock: Box<dyn Fn() -> SystemTime + Send + Sync>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<StoreKey, Kept>,
    /// The number of entries at which expired ones are removed.
    sweep_at: usize,
}

struct Kept {
    entry: Entry,
    until: SystemTime,
}

impl MemoryStore {
    /// Creates an empty store. Its clock starts at the system time and never goes backwards.
    pub fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the start of a store's clock")]
        let start = SystemTime::now();
        let clock = Clock::boot();
        let origin = clock.now();
        Self::with_clock(move || start + (clock.now() - origin))
    }

    /// Creates an empty store that uses this clock, for tests with paused time.
    pub fn with_clock(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { clock: Box::new(clock), entries: Mutex::default() }))
    }

    /// Returns the current entry of a key.
    pub fn entry(&self, key: &StoreKey) -> Option<Entry> {
        let now = (self.0.clock)();
        self.lock().by_key.get(key).filter(|kept| now < kept.until).map(|kept| kept.entry.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code under the mutex can panic half-way: `step` is pure, and a write is a single
        // insert.
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        let mut entries = self.lock();
        let now = (self.0.clock)();
        Ok(entries.apply(command, now))
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let mut entries = self.lock();
        let now = (self.0.clock)();
        batch.into_iter().map(|command| Ok(entries.apply(command, now))).collect()
    }

    /// Returns one: the store replies immediately, so waiting for more commands gains nothing.
    fn max_batch(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }
}

impl Entries {
    fn apply(&mut self, command: Command, now: SystemTime) -> Answer {
        let Command { key, operation, retention } = command;
        let place = self.by_key.entry(key);
        let before = match &place {
            Occupied(place) => Some(place.get()).filter(|kept| now < kept.until),
            Vacant(_) => None,
        };
        let until = before.map(|kept| kept.until);
        let before = before.map(|kept| kept.entry.clone());
        let (after, reply) = step(before.clone(), &operation, now);
        match (after, place) {
            // Only a write extends the retention of the entry.
            (Some(entry), Occupied(mut place)) => {
                let until = until.filter(|_| before.as_ref() == Some(&entry));
                let until = until.unwrap_or_else(|| end(&entry, retention, now));
                place.insert(Kept { entry, until });
            }
            (Some(entry), Vacant(place)) => {
                let until = end(&entry, retention, now);
                place.insert(Kept { entry, until });
                self.sweep(now);
            }
            (None, Occupied(place)) => drop(place.remove()),
            (None, Vacant(_)) => {}
        }
        Answer::new(now, reply)
    }

    /// Removes expired entries. The cost is amortized over the inserts since the last sweep.
    fn sweep(&mut self, now: SystemTime) {
        const LEAST: usize = 1024;
        if self.by_key.len() >= self.sweep_at.max(LEAST) {
            self.by_key.retain(|_, kept| now < kept.until);
            self.sweep_at = self.by_key.len() * 2;
        }
    }
}

/// Returns when an entry that is written now expires.
fn end(entry: &Entry, retention: Retention, now: SystemTime) -> SystemTime {
    now + retention.of(entry.state()).min(MAX_RETENTION)
}

/// A century: longer than any useful retention, and small enough to be added to a time without
/// overflow.
const MAX_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("entries", &self.lock().by_key.len()).finish()
    }
}
