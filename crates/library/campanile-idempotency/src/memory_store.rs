//! The in-memory store.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use campanile_core::{
    Answer, Clock, Command, Entry, ExpireOutcome, Retention, StoreKey, expire, step,
};

use crate::store::{
    ExpireStore, Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, Store,
    StoreError,
};

/// A store that keeps entries in this process: for the quickstart, for tests, and for applications
/// with a single process in which duplicates after a restart do no harm.
///
/// It runs [`step`] under a mutex and thus follows the protocol exactly. Clones share the entries.
/// All entries are lost with the process.
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    clock: Box<dyn Fn() -> SystemTime + Send + Sync>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<StoreKey, StoredEntry>,
    /// The number of entries at which expired ones are removed.
    cleanup_at: usize,
}

struct StoredEntry {
    entry: Entry,
    expires_at: SystemTime,
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
        Self(Arc::new(Inner { clock: Box::new(clock), entries: Mutex::default() }))
    }

    /// Reads the current entry of a key.
    pub fn entry(&self, key: &StoreKey) -> Option<Entry> {
        let now = (self.0.clock)();
        self.lock().get(key, now).map(|stored| stored.entry.clone())
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

    /// The store replies immediately, so waiting for more commands gains nothing.
    fn max_batch(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }
}

impl InspectStore for MemoryStore {
    async fn inspect(&self, key: &StoreKey) -> Result<Inspection, StoreError> {
        let now = (self.0.clock)();
        let found = self.lock().get(key, now).map_or(Found::Absent, StoredEntry::found);
        Ok(Inspection::new(now, found))
    }

    /// A page examines at most 1 000 entries.
    async fn scan(&self, filter: &ScanFilter, cursor: &ScanCursor) -> Result<ScanPage, StoreError> {
        const PAGE_LEN: usize = 1_000;
        let now = (self.0.clock)();
        let entries = self.lock();
        let mut page: Vec<_> = entries
            .by_key
            .iter()
            .filter(|(key, _)| key.namespace() == filter.namespace())
            .filter(|(key, _)| key.digest()[..] > *cursor.as_bytes())
            .collect();
        page.sort_unstable_by_key(|(key, _)| key.digest());
        let has_more = page.len() > PAGE_LEN;
        page.truncate(PAGE_LEN);
        let next = page.last().filter(|_| has_more);
        let next = next.map(|(key, _)| ScanCursor::from_bytes(*key.digest()));
        let found = page
            .into_iter()
            .filter(|(_, stored)| now < stored.expires_at && filter.matches(&stored.entry, now))
            .map(|(key, stored)| (key.clone(), stored.found()));
        Ok(ScanPage::new(now, found.collect(), next))
    }
}

impl ExpireStore for MemoryStore {
    async fn expire(
        &self,
        read: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        let mut entries = self.lock();
        let now = (self.0.clock)();
        Ok(read.iter().map(|(key, entry)| entries.expire(key, entry, after, now)).collect())
    }
}

impl StoredEntry {
    fn found(&self) -> Found {
        Found::Entry { entry: self.entry.clone(), expires_at: self.expires_at }
    }
}

impl Entries {
    /// Finds an entry, unless it has expired.
    fn get(&self, key: &StoreKey, now: SystemTime) -> Option<&StoredEntry> {
        self.by_key.get(key).filter(|stored| now < stored.expires_at)
    }

    fn apply(&mut self, command: Command, now: SystemTime) -> Answer {
        let Command { key, operation, retention } = command;
        let slot = self.by_key.entry(key);
        let before = match &slot {
            Occupied(slot) => Some(slot.get()).filter(|stored| now < stored.expires_at),
            Vacant(_) => None,
        };
        let expires_at = before.map(|stored| stored.expires_at);
        let before = before.map(|stored| stored.entry.clone());
        let (after, reply) = step(before.clone(), &operation, now);
        match (after, slot) {
            // Only a write extends the retention of the entry.
            (Some(entry), Occupied(mut slot)) => {
                let expires_at = expires_at.filter(|_| before.as_ref() == Some(&entry));
                let expires_at = expires_at.unwrap_or_else(|| expiration(&entry, retention, now));
                slot.insert(StoredEntry { entry, expires_at });
            }
            (Some(entry), Vacant(slot)) => {
                let expires_at = expiration(&entry, retention, now);
                slot.insert(StoredEntry { entry, expires_at });
                self.remove_expired(now);
            }
            (None, Occupied(slot)) => drop(slot.remove()),
            (None, Vacant(_)) => {}
        }
        Answer::new(now, reply)
    }

    fn expire(
        &mut self,
        key: &StoreKey,
        read: &Entry,
        after: Duration,
        now: SystemTime,
    ) -> ExpireOutcome {
        let stored = self.by_key.get_mut(key).filter(|stored| now < stored.expires_at);
        let outcome = expire(stored.as_deref().map(|stored| &stored.entry), read, after, now);
        if let (Some(stored), ExpireOutcome::Done) = (stored, outcome) {
            stored.expires_at = now + after.min(RETENTION_CAP);
        }
        outcome
    }

    /// Removes expired entries. The cost is amortized over the inserts since the last cleanup.
    fn remove_expired(&mut self, now: SystemTime) {
        const MIN_CLEANUP_LEN: usize = 1024;
        if self.by_key.len() >= self.cleanup_at.max(MIN_CLEANUP_LEN) {
            self.by_key.retain(|_, stored| now < stored.expires_at);
            self.cleanup_at = self.by_key.len() * 2;
        }
    }
}

fn expiration(entry: &Entry, retention: Retention, now: SystemTime) -> SystemTime {
    now + retention.of(entry.state()).min(RETENTION_CAP)
}

/// A century: longer than any useful retention, and small enough to be added to a time without
/// overflow.
const RETENTION_CAP: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("entries", &self.lock().by_key.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use campanile_core::{FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner, Reply};
    use futures_util::FutureExt;

    use super::*;

    const HOUR: u64 = 3600;

    /// A store with a clock in seconds.
    fn new_store() -> (MemoryStore, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(2_000_000_000));
        let clock = seconds.clone();
        let now =
            move || SystemTime::UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed));
        (MemoryStore::with_clock(now), seconds)
    }

    fn key(namespace: &str, number: u64) -> StoreKey {
        let key = IdempotencyKey::new(number.to_string()).unwrap();
        StoreKey::new(Namespace::try_from(namespace).unwrap(), &key)
    }

    /// Completes a key without an entry, which is kept for an hour.
    fn complete(store: &MemoryStore, key: StoreKey) {
        let hour = Duration::from_secs(HOUR);
        let retention = Retention { attempts: hour, completed: hour, failed: hour };
        let grant = Grant { token: FencingToken::ZERO, owner: Owner::new(1).unwrap() };
        let operation = Operation::Complete {
            grant,
            attempt: 1,
            fingerprint: None,
            reply: None,
            details: None,
        };
        let answer = store.apply(Command { key, operation, retention }).now_or_never().unwrap();
        assert_eq!(answer.unwrap().reply, Reply::Completed);
    }

    fn scan(store: &MemoryStore, cursor: &ScanCursor) -> ScanPage {
        let filter = ScanFilter::new(Namespace::try_from("n").unwrap());
        store.scan(&filter, cursor).now_or_never().unwrap().unwrap()
    }

    #[test]
    fn scan_returns_each_live_entry_of_its_namespace_once() {
        let (store, seconds) = new_store();
        complete(&store, key("n", 0));
        seconds.fetch_add(HOUR, Ordering::Relaxed); // the first entry has just expired
        assert!(scan(&store, &ScanCursor::default()).entries.is_empty());
        assert!(store.entry(&key("n", 0)).is_none());
        complete(&store, key("other", 0));
        for number in 1..2500 {
            complete(&store, key("n", number));
        }
        let mut found = Vec::new();
        let (mut pages, mut cursor) = (0, ScanCursor::default());
        loop {
            let page = scan(&store, &cursor);
            pages += 1;
            found.extend(page.entries.into_iter().map(|(key, _)| *key.digest()));
            match page.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        let mut expected: Vec<_> = (1..2500).map(|number| *key("n", number).digest()).collect();
        expected.sort_unstable();
        assert!(found == expected, "{} entries in {pages} pages", found.len());
        assert_eq!(pages, 3);
    }

    #[test]
    fn page_that_is_just_full_is_the_last() {
        let (store, _) = new_store();
        (0..1000).for_each(|number| complete(&store, key("n", number)));
        let page = scan(&store, &ScanCursor::default());
        assert_eq!((page.entries.len(), page.next), (1000, None));
    }

    #[test]
    fn expired_entries_are_removed() {
        let (store, seconds) = new_store();
        for number in 0..10_000 {
            complete(&store, key("n", number));
            seconds.fetch_add(HOUR / 100, Ordering::Relaxed); // a hundred entries are alive
        }
        let kept = store.lock().by_key.len();
        assert!((100..=1024).contains(&kept), "{kept} entries are kept");
        assert!(format!("{store:?}").contains(&format!("entries: {kept}")));
    }

    #[test]
    fn entry_that_is_as_read_expires_when_it_is_told_to() {
        let (store, seconds) = new_store();
        (0..2).for_each(|number| complete(&store, key("n", number)));
        let read: Vec<_> =
            (0..3).map(|number| (key("n", number), store.entry(&key("n", 0)).unwrap())).collect();
        let minute = Duration::from_secs(60);
        let outcomes = store.expire(&read, minute).now_or_never().unwrap().unwrap();
        assert_eq!(outcomes.len(), 3);
        assert_eq!(outcomes[..2], [ExpireOutcome::Done; 2]);
        assert_ne!(outcomes[2], ExpireOutcome::Done, "there is no such entry");
        seconds.fetch_add(59, Ordering::Relaxed);
        assert!(store.entry(&key("n", 0)).is_some());
        seconds.fetch_add(1, Ordering::Relaxed);
        assert!(store.entry(&key("n", 0)).is_none());
        // An entry that has expired is not kept by a later time.
        let outcomes = store.expire(&read[..1], minute).now_or_never().unwrap().unwrap();
        assert_ne!(outcomes[0], ExpireOutcome::Done);
    }

    #[test]
    fn entry_is_removed_as_soon_as_it_has_expired() {
        let (store, seconds) = new_store();
        (0..1023).for_each(|number| complete(&store, key("n", number)));
        seconds.fetch_add(HOUR, Ordering::Relaxed);
        complete(&store, key("n", 1023));
        assert_eq!(store.lock().by_key.len(), 1);
    }

    #[test]
    fn live_entries_are_searched_for_expired_ones_whenever_they_have_doubled() {
        let (store, _) = new_store();
        (0..5000).for_each(|number| complete(&store, key("n", number)));
        assert_eq!(store.lock().cleanup_at, 8192);
    }
}
