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

/// A store that remembers which keys are COMPLETED, so that a later duplicate in this process costs no
/// round trip to the store behind it.
///
/// It is exact: it answers only what that store would have, and asks for everything else; a key that
/// it does not know says nothing. It is bounded in bytes and in time: a key is remembered for a minute
/// at most, and what is seldom asked for goes first. (Layers of one namespace that keep COMPLETED
/// entries for different times may be answered by the longer, for that minute.)
///
/// Worth it where duplicates come soon after another, as from a producer that retries; a rebalance or a
/// restart brings them to a process that has none of it. Clones share the cache.
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

impl<S> Cached<S> {
    /// The store with a cache of so many bytes before it. A key takes about 250 and its reply. What
    /// goes to the store otherwise is not seen here.
    pub fn new(store: S, max_bytes: usize) -> Self {
        Self::with_clock(store, max_bytes, Clock::boot())
    }

    /// The same, with a clock of one's own, for tests with paused time.
    pub fn with_clock(store: S, max_bytes: usize, clock: Clock) -> Self {
        const USUAL: usize = 256;
        let known = Cache::with_weighter(max_bytes / USUAL, max_bytes as u64, Weight);
        let (known, hits, misses) = (Mutex::new(known), AtomicU64::new(0), AtomicU64::new(0));
        Self { store, cache: Arc::new(Inner { clock, known, hits, misses }) }
    }

    /// How many acquires it has answered, each of which would have been a command to the store.
    pub fn hits(&self) -> u64 {
        self.cache.hits.load(Ordering::Relaxed)
    }

    /// How many acquires had to be asked of the store.
    pub fn misses(&self) -> u64 {
        self.cache.misses.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Cache<Id, Known, Weight>> {
        // Nothing under it can panic half-way.
        self.cache.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if it is known.
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
        let sent = self.cache.clock.now();
        match &command.operation {
            Operation::Acquire { owner, fingerprint, .. } => {
                Lesson::Acquire { id, owner: *owner, fingerprint: *fingerprint, kept, sent }
            }
            Operation::Complete { grant, attempt, fingerprint, reply } => {
                let granted =
                    Granted { grant: *grant, attempt: *attempt, fingerprint: *fingerprint };
                // Taken out whatever it says, so that a repeat, which does not tell when the first took
                // place, is not taken for it.
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
            // Others may have been told meanwhile what was true before.
            (Lesson::Redrive { id }, _) => drop(self.lock().remove(&id)),
            _ => {}
        }
    }

    /// `learnt` is the store's clock, and ours before it was asked: what is remembered ends before the
    /// entry does.
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
        // A copy, for the bytes may be a part of something larger.
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

/// What an answer may teach. `kept` is how long the store keeps a COMPLETED entry, `sent` our clock
/// before it was asked.
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
            // Which answer belongs to which command is not known. The caller sees that by the number.
            return Vec::new();
        }
        let mut answers = answers.into_iter().zip(lessons).map(|(answer, lesson)| {
            self.learn(lesson, &answer);
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

    fn longest_call(&self) -> Option<Duration> {
        self.store.longest_call()
    }

    /// The same cache, before a handle of its own.
    fn separate(&self) -> Self {
        Self { store: self.store.separate(), cache: self.cache.clone() }
    }
}
