//! A local cache of COMPLETED keys.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::telemetry::{CacheResult, Counter, Family, instruments};
use campanile_core::{
    Answer, Clock, Command, Details, Fingerprint, Grant, Operation, Owner, Reply, StoreKey,
};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::{Store, StoreError};

/// How long a key is cached. After an operator reopens a COMPLETED entry, the record must not be
/// produced again before this time has passed, because other processes are not notified.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// A store that caches which keys are COMPLETED, so that a later duplicate in this process needs no
/// round trip to the underlying store.
///
/// The cache is exact: it answers only what the store would answer, and forwards everything else.
/// The absence of a key from the cache implies nothing. The cache is bounded in bytes and in time:
/// a key is cached for at most one minute, and rarely used keys are evicted first. If the layers of
/// one namespace have different retentions for COMPLETED entries, an answer may use the longer one
/// during that minute.
///
/// Use it if duplicates arrive soon after each other, as from a producer that retries. After a
/// rebalance or a restart, duplicates reach a process with an empty cache. Clones share the cache.
///
/// ```
/// use campanile_core::{BoxError, Outcome};
/// use campanile_idempotency::{Cached, Runner, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let store = Cached::new(MemoryStore::new(), 16 * 1024 * 1024);
/// let runner = Runner::new(store.clone(), "jobs")?;
/// runner.run("job-1", async |_| Ok::<_, BoxError>(())).await?;
/// assert!(runner.run("job-1", async |_| Ok::<_, BoxError>(())).await?.is_duplicate());
/// assert_eq!((store.hits(), store.misses()), (1, 1));
/// # Ok(())
/// # }
/// ```
pub struct Cached<S> {
    store: S,
    cache: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    entries: Mutex<Cache<StoreKey, CacheEntry, Weight>>,
    hits: AtomicU64,
    misses: AtomicU64,
    lookups: Family<CacheResult, Counter>,
}

enum CacheEntry {
    /// Granted through this store. Its first completion determines the entry.
    Granted(Granted),
    Completed {
        entry: CompletedEntry,
        /// When this was observed: the store's clock, and the local clock.
        observed_at: (SystemTime, Duration),
        /// When the cached entry expires, by the local clock.
        expires_at: Duration,
    },
}

/// A grant, with the fields that its completion must repeat.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Granted {
    grant: Grant,
    attempt: u16,
    fingerprint: Option<Fingerprint>,
}

/// The contents of a COMPLETED entry.
struct CompletedEntry {
    fingerprint: Option<Fingerprint>,
    attempt: u16,
    completed_at: SystemTime,
    reply: Option<Bytes>,
    details: Option<Details>,
}

struct Weight;

impl Weighter<StoreKey, CacheEntry> for Weight {
    fn weight(&self, _: &StoreKey, entry: &CacheEntry) -> u64 {
        /// The cache's own overhead per entry.
        const OVERHEAD: usize = 64;
        let contents = match entry {
            CacheEntry::Completed { entry: CompletedEntry { reply, details, .. }, .. } => {
                let details = details.as_ref().map_or(0, |details| details.as_bytes().len());
                reply.as_ref().map_or(0, Bytes::len) + details
            }
            CacheEntry::Granted(_) => 0,
        };
        (OVERHEAD + size_of::<StoreKey>() + size_of::<CacheEntry>() + contents) as u64
    }
}

impl<S> Cached<S> {
    /// Adds a cache of this size to a store. A key takes about 250 bytes plus its reply and details. The cache
    /// does not see commands that bypass it.
    pub fn new(store: S, max_bytes: usize) -> Self {
        Self::with_clock(store, max_bytes, Clock::boot())
    }

    /// Adds a cache with a custom clock, for tests with paused time.
    pub fn with_clock(store: S, max_bytes: usize, clock: Clock) -> Self {
        const AVERAGE_ENTRY_BYTES: usize = 256;
        let entries =
            Cache::with_weighter(max_bytes / AVERAGE_ENTRY_BYTES, max_bytes as u64, Weight);
        let (entries, hits, misses) = (Mutex::new(entries), AtomicU64::new(0), AtomicU64::new(0));
        let lookups = Family::new(&instruments::CACHE_LOOKUPS, &[]);
        Self { store, cache: Arc::new(Inner { clock, entries, hits, misses, lookups }) }
    }

    /// Returns the number of acquires answered from the cache, each of which saved a command.
    pub fn hits(&self) -> u64 {
        self.cache.hits.load(Ordering::Relaxed)
    }

    /// Returns the number of acquires forwarded to the store.
    pub fn misses(&self) -> u64 {
        self.cache.misses.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Cache<StoreKey, CacheEntry, Weight>> {
        // No code under the mutex can panic half-way.
        self.cache.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the answer to a command, and counts the hit or the miss.
    fn cached_answer(&self, command: &Command) -> Option<Answer> {
        let Operation::Acquire { fingerprint, .. } = command.operation else {
            return None;
        };
        let answer = self.lookup(&command.key, fingerprint);
        let (count, result) = match answer {
            Some(_) => (&self.cache.hits, CacheResult::Hit),
            None => (&self.cache.misses, CacheResult::Miss),
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.cache.lookups.of(result).increment(1);
        answer
    }

    fn lookup(&self, key: &StoreKey, fingerprint: Option<Fingerprint>) -> Option<Answer> {
        let now = self.cache.clock.now();
        let mut entries = self.lock();
        let CacheEntry::Completed { entry, observed_at: (store_time, local_time), expires_at } =
            entries.get(key)?
        else {
            return None;
        };
        if now >= *expires_at {
            entries.remove(key);
            return None;
        }
        // Only the store knows whether a different payload is a mismatch.
        if fingerprint.is_some() && fingerprint != entry.fingerprint {
            return None;
        }
        let reply = Reply::Duplicate {
            reply: entry.reply.clone(),
            attempt: entry.attempt,
            completed_at: entry.completed_at,
            details: entry.details.clone(),
        };
        Some(Answer::new(*store_time + now.saturating_sub(*local_time), reply))
    }

    /// Prepares the update that the answer to a command will allow. Called before the command is
    /// sent.
    fn prepare_update(&self, command: &Command) -> PendingUpdate {
        let key = command.key.clone();
        let retention = command.retention.completed;
        let sent = self.cache.clock.now();
        match &command.operation {
            Operation::Acquire { owner, fingerprint, .. } => PendingUpdate::Acquire {
                key,
                owner: *owner,
                fingerprint: *fingerprint,
                retention,
                sent,
            },
            Operation::Complete { grant, attempt, fingerprint, reply, details } => {
                let granted =
                    Granted { grant: *grant, attempt: *attempt, fingerprint: *fingerprint };
                // Remove the grant in any case: a repeated completion does not show when the first
                // one happened, and must not be mistaken for the first.
                let is_same_grant = |entry: &CacheEntry| matches!(entry, CacheEntry::Granted(it) if it.grant == *grant);
                match self.lock().remove_if(&key, is_same_grant) {
                    Some((_, CacheEntry::Granted(it))) if it == granted => {
                        PendingUpdate::Complete {
                            key,
                            granted,
                            reply: reply.clone(),
                            details: details.clone(),
                            retention,
                            sent,
                        }
                    }
                    _ => PendingUpdate::None,
                }
            }
            Operation::Redrive { .. } => {
                self.lock().remove(&key);
                PendingUpdate::Redrive { key }
            }
            _ => PendingUpdate::None,
        }
    }

    fn apply_update(&self, update: PendingUpdate, answer: &Result<Answer, StoreError>) {
        let Ok(Answer { now, reply: answer }) = answer else {
            return;
        };
        match (update, answer) {
            (
                PendingUpdate::Acquire { key, owner, fingerprint, .. },
                &Reply::Acquired { token, attempt, .. },
            ) => {
                let grant = Grant { token, owner };
                self.lock()
                    .insert(key, CacheEntry::Granted(Granted { grant, attempt, fingerprint }));
            }
            (
                PendingUpdate::Acquire { key, fingerprint, retention, sent, .. },
                Reply::Duplicate { reply, attempt, completed_at, details },
            ) => {
                let completed = CompletedEntry {
                    fingerprint,
                    attempt: *attempt,
                    completed_at: *completed_at,
                    reply: reply.clone(),
                    details: details.clone(),
                };
                self.insert_completed(key, completed, (*now, sent), retention);
            }
            (
                PendingUpdate::Complete { key, granted, reply, details, retention, sent },
                Reply::Completed,
            ) => {
                let Granted { attempt, fingerprint, .. } = granted;
                let completed =
                    CompletedEntry { fingerprint, attempt, completed_at: *now, reply, details };
                self.insert_completed(key, completed, (*now, sent), retention);
            }
            // Another task may have cached the previous state in the meantime.
            (PendingUpdate::Redrive { key }, _) => drop(self.lock().remove(&key)),
            _ => {}
        }
    }

    /// Caches a COMPLETED entry. `observed_at` is the store's clock, and the local clock before the
    /// command was sent, so that the cached entry expires before the store's entry does.
    fn insert_completed(
        &self,
        key: StoreKey,
        mut completed: CompletedEntry,
        observed_at: (SystemTime, Duration),
        retention: Duration,
    ) {
        let (store_time, local_time) = observed_at;
        let age = store_time.duration_since(completed.completed_at).unwrap_or_default();
        let ttl = retention.saturating_sub(age).min(CACHE_TTL);
        // Copy the reply, because the bytes may be part of a larger allocation.
        completed.reply = completed.reply.map(|reply| Bytes::copy_from_slice(&reply));
        let entry =
            CacheEntry::Completed { entry: completed, observed_at, expires_at: local_time + ttl };
        self.lock().insert(key, entry);
    }
}

impl<S: Clone> Clone for Cached<S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), cache: self.cache.clone() }
    }
}

impl<S: fmt::Debug> fmt::Debug for Cached<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, bytes) = {
            let entries = self.lock();
            (entries.len(), entries.weight())
        };
        f.debug_struct("Cached")
            .field("store", &self.store)
            .field("keys", &keys)
            .field("bytes", &bytes)
            .field("hits", &self.hits())
            .field("misses", &self.misses())
            .finish()
    }
}

/// An update of the cache that depends on the answer to a command. `retention` is the store's
/// retention of COMPLETED entries, `sent` the local clock before the command was sent.
enum PendingUpdate {
    Acquire {
        key: StoreKey,
        owner: Owner,
        fingerprint: Option<Fingerprint>,
        retention: Duration,
        sent: Duration,
    },
    Complete {
        key: StoreKey,
        granted: Granted,
        reply: Option<Bytes>,
        details: Option<Details>,
        retention: Duration,
        sent: Duration,
    },
    Redrive {
        key: StoreKey,
    },
    None,
}

impl<S: Store> Store for Cached<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        if let Some(answer) = self.cached_answer(&command) {
            return Ok(answer);
        }
        let update = self.prepare_update(&command);
        let answer = self.store.apply(command).await;
        self.apply_update(update, &answer);
        answer
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let cached: Vec<Option<Answer>> = batch.iter().map(|c| self.cached_answer(c)).collect();
        let forwarded: Vec<Command> =
            batch.into_iter().zip(&cached).filter(|(_, k)| k.is_none()).map(|(c, _)| c).collect();
        let updates: Vec<PendingUpdate> =
            forwarded.iter().map(|command| self.prepare_update(command)).collect();
        let answers = match forwarded.is_empty() {
            true => Vec::new(),
            false => self.store.apply_batch(forwarded).await,
        };
        if answers.len() != updates.len() {
            // It is unknown which answer belongs to which command. The caller detects the wrong
            // number.
            return Vec::new();
        }
        let mut answers = answers.into_iter().zip(updates).map(|(answer, update)| {
            self.apply_update(update, &answer);
            answer
        });
        let next = |cached: Option<Answer>| match cached {
            Some(answer) => Ok(answer),
            None => answers.next().expect("the number of answers was checked"),
        };
        cached.into_iter().map(next).collect()
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }

    fn max_call_duration(&self) -> Option<Duration> {
        self.store.max_call_duration()
    }

    /// Shares the cache, in front of a separate handle to the store.
    fn for_renewals(&self) -> Self {
        Self { store: self.store.for_renewals(), cache: self.cache.clone() }
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{IdempotencyKey, Namespace};

    use super::*;

    #[test]
    fn key_takes_about_250_bytes_plus_its_reply_and_details() {
        let key = IdempotencyKey::new("p-1").unwrap();
        let key = StoreKey::new(Namespace::try_from("n").unwrap(), &key);
        let weight = |reply: Option<Bytes>, details| {
            let completed = CompletedEntry {
                fingerprint: None,
                attempt: 1,
                completed_at: SystemTime::UNIX_EPOCH,
                reply,
                details,
            };
            let observed_at = (SystemTime::UNIX_EPOCH, Duration::ZERO);
            let expires_at = Duration::MAX;
            Weight
                .weight(&key, &CacheEntry::Completed { entry: completed, observed_at, expires_at })
        };
        let empty = weight(None, None);
        assert!((200..=300).contains(&empty), "{empty}");
        assert_eq!(weight(Some(Bytes::from_static(&[0; 1000])), None), empty + 1000);
        let details = Details::builder(Owner::new(1).unwrap()).instance("payments-1").build();
        let len = details.as_bytes().len() as u64;
        assert_eq!(weight(Some(Bytes::from_static(&[0; 10])), Some(details)), empty + 10 + len);
    }
}
