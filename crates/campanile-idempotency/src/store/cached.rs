//! A local cache of COMPLETED keys.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{
    Answer, Clock, Command, Fingerprint, Grant, Namespace, Operation, Owner, Reply, StoreKey,
};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::{Store, StoreError};

/// How long a key is cached. After an operator reopens a COMPLETED entry, the record must not be
/// produced again before this time has passed, because other processes are not notified.
const REMEMBERED: Duration = Duration::from_secs(60);

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
/// use campanile_idempotency::{Cached, Guard, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let store = Cached::new(MemoryStore::new(), 16 * 1024 * 1024);
/// let guard = Guard::new(store.clone(), "jobs")?;
/// guard.run("job-1", async |_| Ok::<_, BoxError>(())).await?;
/// assert!(guard.run("job-1", async |_| Ok::<_, BoxError>(())).await?.is_duplicate());
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
    known: Mutex<Cache<Id, Known, Weight>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// A key as stores distinguish keys. The bytes of the key itself would keep a whole record in
/// memory.
type Id = (Namespace, [u8; 16]);

enum Known {
    /// Granted through this store. Its first completion determines the entry.
    Granted(Granted),
    Completed {
        what: Completed,
        /// When this was learned: the store's clock, and the local clock.
        learnt: (SystemTime, Duration),
        /// When the cached entry expires, by the local clock.
        until: Duration,
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
struct Completed {
    fingerprint: Option<Fingerprint>,
    attempt: u16,
    completed_at: SystemTime,
    reply: Option<Bytes>,
}

struct Weight;

impl Weighter<Id, Known> for Weight {
    fn weight(&self, _: &Id, known: &Known) -> u64 {
        /// The cache's own overhead per entry.
        const OVERHEAD: usize = 64;
        let reply = match known {
            Known::Completed { what: Completed { reply: Some(reply), .. }, .. } => reply.len(),
            _ => 0,
        };
        (OVERHEAD + size_of::<Id>() + size_of::<Known>() + reply) as u64
    }
}

impl<S> Cached<S> {
    /// Adds a cache of this size to a store. A key takes about 250 bytes plus its reply. The cache
    /// does not see commands that bypass it.
    pub fn new(store: S, max_bytes: usize) -> Self {
        Self::with_clock(store, max_bytes, Clock::boot())
    }

    /// Adds a cache with a custom clock, for tests with paused time.
    pub fn with_clock(store: S, max_bytes: usize, clock: Clock) -> Self {
        const USUAL: usize = 256;
        let known = Cache::with_weighter(max_bytes / USUAL, max_bytes as u64, Weight);
        let (known, hits, misses) = (Mutex::new(known), AtomicU64::new(0), AtomicU64::new(0));
        Self { store, cache: Arc::new(Inner { clock, known, hits, misses }) }
    }

    /// Returns the number of acquires answered from the cache, each of which saved a command.
    pub fn hits(&self) -> u64 {
        self.cache.hits.load(Ordering::Relaxed)
    }

    /// Returns the number of acquires forwarded to the store.
    pub fn misses(&self) -> u64 {
        self.cache.misses.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Cache<Id, Known, Weight>> {
        // No code under the mutex can panic half-way.
        self.cache.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a command, if it is cached.
    fn known(&self, command: &Command) -> Option<Answer> {
        let Operation::Acquire { fingerprint, .. } = command.operation else {
            return None;
        };
        let answer = self.remembered(&command.key, fingerprint);
        let count = if answer.is_some() { &self.cache.hits } else { &self.cache.misses };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn remembered(&self, key: &StoreKey, fingerprint: Option<Fingerprint>) -> Option<Answer> {
        let now = self.cache.clock.now();
        let mut known = self.lock();
        let id = id(key);
        let Known::Completed { what, learnt: (stores, ours), until } = known.get(&id)? else {
            return None;
        };
        if now >= *until {
            known.remove(&id);
            return None;
        }
        // Only the store knows whether a different payload is a mismatch.
        if fingerprint.is_some() && fingerprint != what.fingerprint {
            return None;
        }
        let reply = Reply::Duplicate {
            reply: what.reply.clone(),
            attempt: what.attempt,
            completed_at: what.completed_at,
        };
        Some(Answer::new(*stores + now.saturating_sub(*ours), reply))
    }

    /// Returns what the answer to a command will allow the cache to learn. Called before the
    /// command is sent.
    fn lesson(&self, command: &Command) -> Lesson {
        let id = id(&command.key);
        let kept = command.retention.completed;
        let sent = self.cache.clock.now();
        match &command.operation {
            Operation::Acquire { owner, fingerprint, .. } => {
                Lesson::Acquire { id, owner: *owner, fingerprint: *fingerprint, kept, sent }
            }
            Operation::Complete { grant, attempt, fingerprint, reply } => {
                let granted =
                    Granted { grant: *grant, attempt: *attempt, fingerprint: *fingerprint };
                // Remove the grant in any case: a repeated completion does not show when the first
                // one happened, and must not be mistaken for the first.
                let is_its =
                    |known: &Known| matches!(known, Known::Granted(it) if it.grant == *grant);
                match self.lock().remove_if(&id, is_its) {
                    Some((_, Known::Granted(it))) if it == granted => {
                        Lesson::Complete { id, granted, reply: reply.clone(), kept, sent }
                    }
                    _ => Lesson::None,
                }
            }
            Operation::Redrive { .. } => {
                self.lock().remove(&id);
                Lesson::Redrive { id }
            }
            _ => Lesson::None,
        }
    }

    fn learn(&self, lesson: Lesson, answer: &Result<Answer, StoreError>) {
        let Ok(Answer { now, reply: answer }) = answer else {
            return;
        };
        match (lesson, answer) {
            (
                Lesson::Acquire { id, owner, fingerprint, .. },
                &Reply::Acquired { token, attempt },
            ) => {
                let grant = Grant { token, owner };
                self.lock().insert(id, Known::Granted(Granted { grant, attempt, fingerprint }));
            }
            (
                Lesson::Acquire { id, fingerprint, kept, sent, .. },
                Reply::Duplicate { reply, attempt, completed_at },
            ) => {
                let (attempt, completed_at, reply) = (*attempt, *completed_at, reply.clone());
                let completed = Completed { fingerprint, attempt, completed_at, reply };
                self.remember(id, completed, (*now, sent), kept);
            }
            (Lesson::Complete { id, granted, reply, kept, sent }, Reply::Completed) => {
                let Granted { attempt, fingerprint, .. } = granted;
                let completed = Completed { fingerprint, attempt, completed_at: *now, reply };
                self.remember(id, completed, (*now, sent), kept);
            }
            // Another task may have cached the previous state in the meantime.
            (Lesson::Redrive { id }, _) => drop(self.lock().remove(&id)),
            _ => {}
        }
    }

    /// Caches a COMPLETED entry. `learnt` is the store's clock, and the local clock before the
    /// command was sent, so that the cached entry expires before the store's entry does.
    fn remember(
        &self,
        id: Id,
        mut what: Completed,
        learnt: (SystemTime, Duration),
        kept: Duration,
    ) {
        let (stores, ours) = learnt;
        let age = stores.duration_since(what.completed_at).unwrap_or_default();
        let left = kept.saturating_sub(age).min(REMEMBERED);
        // Copy the reply, because the bytes may be part of a larger allocation.
        what.reply = what.reply.map(|reply| Bytes::copy_from_slice(&reply));
        let known = Known::Completed { what, learnt, until: ours + left };
        self.lock().insert(id, known);
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
            let known = self.lock();
            (known.len(), known.weight())
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

fn id(key: &StoreKey) -> Id {
    (key.namespace().clone(), *key.digest())
}

/// What the cache can learn from an answer. `kept` is the store's retention of COMPLETED entries,
/// `sent` the local clock before the command was sent.
enum Lesson {
    Acquire {
        id: Id,
        owner: Owner,
        fingerprint: Option<Fingerprint>,
        kept: Duration,
        sent: Duration,
    },
    Complete {
        id: Id,
        granted: Granted,
        reply: Option<Bytes>,
        kept: Duration,
        sent: Duration,
    },
    Redrive {
        id: Id,
    },
    None,
}

impl<S: Store> Store for Cached<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        if let Some(answer) = self.known(&command) {
            return Ok(answer);
        }
        let lesson = self.lesson(&command);
        let answer = self.store.apply(command).await;
        self.learn(lesson, &answer);
        answer
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let known: Vec<Option<Answer>> = batch.iter().map(|c| self.known(c)).collect();
        let asked: Vec<Command> =
            batch.into_iter().zip(&known).filter(|(_, k)| k.is_none()).map(|(c, _)| c).collect();
        let lessons: Vec<Lesson> = asked.iter().map(|command| self.lesson(command)).collect();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => self.store.apply_batch(asked).await,
        };
        if answers.len() != lessons.len() {
            // It is unknown which answer belongs to which command. The caller detects the wrong
            // number.
            return Vec::new();
        }
        let mut answers = answers.into_iter().zip(lessons).map(|(answer, lesson)| {
            self.learn(lesson, &answer);
            answer
        });
        let next = |known: Option<Answer>| match known {
            Some(answer) => Ok(answer),
            None => answers.next().expect("the number of answers was checked"),
        };
        known.into_iter().map(next).collect()
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }

    fn longest_call(&self) -> Option<Duration> {
        self.store.longest_call()
    }

    /// Shares the cache, in front of a separate handle to the store.
    fn separate(&self) -> Self {
        Self { store: self.store.separate(), cache: self.cache.clone() }
    }
}
