//! COMPLETED keys, remembered in this process.

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

/// For so long a key is remembered. An operator who reopens a COMPLETED entry has to wait as long
/// before producing its record again: another process cannot be told.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Remembers which keys are COMPLETED, so that a later duplicate in this process costs no round trip
/// to the store.
///
/// It is exact: it answers only what the store would have, and asks for everything else; a key that it
/// does not know says nothing. It is bounded in bytes and in time: a key is remembered for a minute
/// at most, and what is seldom asked for goes first. Worth it where duplicates come soon after another,
/// as from a producer that retries; a rebalance or a restart brings them to a process that has none
/// of it. Off unless a store is put into it. Clones are one cache.
///
/// ```
/// use campanile_core::{BoxError, Outcome};
/// use campanile_idempotency::{Guard, LocalCache, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let cache = LocalCache::new(16 * 1024 * 1024);
/// let guard = Guard::new(cache.around(MemoryStore::new()), "jobs")?;
/// guard.run("job-1", async |_| Ok::<_, BoxError>(())).await?;
/// assert!(guard.run("job-1", async |_| Ok::<_, BoxError>(())).await?.is_duplicate());
/// assert_eq!((cache.hits(), cache.misses()), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LocalCache(Arc<Inner>);

struct Inner {
    clock: Clock,
    known: Mutex<Cache<Id, Known, Weight>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// A key as the stores tell keys apart. Its own bytes would keep a whole record in memory.
type Id = (Namespace, [u8; 16]);

enum Known {
    /// It was granted here, so its first completion makes the entry what that says.
    Granted(Granted),
    Completed {
        what: Completed,
        /// The store's clock when this was learnt, by ours.
        learnt: (SystemTime, Duration),
        /// From then on the store is asked, by our clock.
        until: Duration,
    },
}

/// A grant, and what its completion must say again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Granted {
    grant: Grant,
    attempt: u16,
    fingerprint: Option<Fingerprint>,
}

/// What a COMPLETED entry says.
struct Completed {
    fingerprint: Option<Fingerprint>,
    attempt: u16,
    completed_at: SystemTime,
    reply: Option<Bytes>,
}

struct Weight;

impl Weighter<Id, Known> for Weight {
    fn weight(&self, _: &Id, known: &Known) -> u64 {
        /// What the cache itself needs for each.
        const OVERHEAD: usize = 64;
        let reply = match known {
            Known::Completed { what: Completed { reply: Some(reply), .. }, .. } => reply.len(),
            _ => 0,
        };
        (OVERHEAD + size_of::<Id>() + size_of::<Known>() + reply) as u64
    }
}

impl LocalCache {
    /// A cache of so many bytes. A key takes about 250 and its reply.
    pub fn new(max_bytes: usize) -> Self {
        Self::with_clock(max_bytes, Clock::boot())
    }

    /// The same, with a clock of one's own, for tests with paused time.
    pub fn with_clock(max_bytes: usize, clock: Clock) -> Self {
        const USUAL: usize = 256;
        let known = Cache::with_weighter(max_bytes / USUAL, max_bytes as u64, Weight);
        let (known, hits, misses) = (Mutex::new(known), AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Inner { clock, known, hits, misses }))
    }

    /// The store with this cache before it: what goes to the store otherwise is not seen here.
    pub fn around<S: Store>(&self, store: S) -> Cached<S> {
        Cached { cache: self.clone(), store }
    }

    /// How many acquires it has answered, each of which would have been a command to the store.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::Relaxed)
    }

    /// How many acquires had to be asked of the store.
    pub fn misses(&self) -> u64 {
        self.0.misses.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Cache<Id, Known, Weight>> {
        // Nothing under it can panic half-way.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if it is known.
    fn known(&self, command: &Command) -> Option<Answer> {
        let Operation::Acquire { fingerprint, .. } = command.operation else {
            return None;
        };
        let answer = self.remembered(&command.key, fingerprint);
        let count = if answer.is_some() { &self.0.hits } else { &self.0.misses };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn remembered(&self, key: &StoreKey, fingerprint: Option<Fingerprint>) -> Option<Answer> {
        let now = self.0.clock.now();
        let mut known = self.lock();
        let id = id(key);
        let Known::Completed { what, learnt: (stores, ours), until } = known.get(&id)? else {
            return None;
        };
        if now >= *until {
            known.remove(&id);
            return None;
        }
        // Only the store knows whether another payload is a mismatch.
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

    /// Before a command is sent: what its answer may teach.
    fn lesson(&self, command: &Command) -> Lesson {
        let id = id(&command.key);
        let kept = command.retention.completed;
        match &command.operation {
            Operation::Acquire { owner, fingerprint, .. } => {
                Lesson::Acquire { id, owner: *owner, fingerprint: *fingerprint, kept }
            }
            Operation::Complete { grant, attempt, fingerprint, reply } => {
                let granted =
                    Granted { grant: *grant, attempt: *attempt, fingerprint: *fingerprint };
                // Taken out, so that a repeat, which does not tell when the first took place, is
                // not taken for it.
                let known = self.lock().remove(&id);
                match known {
                    Some((_, Known::Granted(known))) if known == granted => {
                        Lesson::Complete { id, granted, reply: reply.clone(), kept }
                    }
                    Some((_, known @ Known::Completed { .. })) => {
                        self.lock().insert(id, known);
                        Lesson::None
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
                Lesson::Acquire { id, fingerprint, kept, .. },
                Reply::Duplicate { reply, attempt, completed_at },
            ) => {
                let (attempt, completed_at, reply) = (*attempt, *completed_at, reply.clone());
                let completed = Completed { fingerprint, attempt, completed_at, reply };
                self.remember(id, completed, *now, kept);
            }
            (Lesson::Complete { id, granted, reply, kept }, Reply::Completed) => {
                let Granted { attempt, fingerprint, .. } = granted;
                let completed = Completed { fingerprint, attempt, completed_at: *now, reply };
                self.remember(id, completed, *now, kept);
            }
            // Others may have been told meanwhile what was true before.
            (Lesson::Redrive { id }, _) => drop(self.lock().remove(&id)),
            _ => {}
        }
    }

    fn remember(&self, id: Id, mut what: Completed, now: SystemTime, kept: Duration) {
        let ours = self.0.clock.now();
        let age = now.duration_since(what.completed_at).unwrap_or_default();
        let left = kept.saturating_sub(age).min(REMEMBERED);
        // A copy, for the bytes may be a part of something larger.
        what.reply = what.reply.map(|reply| Bytes::copy_from_slice(&reply));
        let known = Known::Completed { what, learnt: (now, ours), until: ours + left };
        self.lock().insert(id, known);
    }
}

impl fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, bytes) = {
            let known = self.lock();
            (known.len(), known.weight())
        };
        f.debug_struct("LocalCache")
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

/// What an answer may teach; `kept` is how long the store keeps a COMPLETED entry.
enum Lesson {
    Acquire { id: Id, owner: Owner, fingerprint: Option<Fingerprint>, kept: Duration },
    Complete { id: Id, granted: Granted, reply: Option<Bytes>, kept: Duration },
    Redrive { id: Id },
    None,
}

/// A store with a [`LocalCache`] before it.
#[derive(Debug)]
pub struct Cached<S> {
    cache: LocalCache,
    store: S,
}

impl<S: Store> Store for Cached<S> {
    async fn apply(&self, command: Command) -> Result<Answer, StoreError> {
        if let Some(answer) = self.cache.known(&command) {
            return Ok(answer);
        }
        let lesson = self.cache.lesson(&command);
        let answer = self.store.apply(command).await;
        self.cache.learn(lesson, &answer);
        answer
    }

    async fn apply_batch(&self, batch: Vec<Command>) -> Vec<Result<Answer, StoreError>> {
        let known: Vec<Option<Answer>> = batch.iter().map(|c| self.cache.known(c)).collect();
        let asked: Vec<Command> =
            batch.into_iter().zip(&known).filter(|(_, k)| k.is_none()).map(|(c, _)| c).collect();
        let lessons: Vec<Lesson> = asked.iter().map(|command| self.cache.lesson(command)).collect();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => self.store.apply_batch(asked).await,
        };
        if answers.len() != lessons.len() {
            // Which answer belongs to which command is not known. The caller sees that by the number.
            return Vec::new();
        }
        let mut answers = answers.into_iter().zip(lessons).map(|(answer, lesson)| {
            self.cache.learn(lesson, &answer);
            answer
        });
        let next = |known: Option<Answer>| match known {
            Some(answer) => Ok(answer),
            None => answers.next().expect("one for each that was asked"),
        };
        known.into_iter().map(next).collect()
    }

    fn max_batch(&self) -> NonZeroUsize {
        self.store.max_batch()
    }
}
