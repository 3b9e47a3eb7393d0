//! Brings the entry of a key into a situation, by the operations of an application.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::{
    Command, Coordinates, Details, FencingToken, Grant, IdempotencyKey, Namespace, Operation,
    Owner, Reply, Retention, StoreKey,
};
use campanile_idempotency::{MemoryStore, Store};
use futures_util::FutureExt;

pub(crate) const NAMESPACE: &str = "billing";
/// Long, so that a lock does not expire in Redis during a test.
pub(crate) const TTL: Duration = Duration::from_secs(10 * 60);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);
pub(crate) const MAX_ATTEMPTS: u16 = 3;

/// The start of the store's clock: 2100-01-01, later than all records.
const START: Duration = Duration::from_secs(4_102_444_800);

pub(crate) fn namespace() -> Namespace {
    NAMESPACE.try_into().unwrap()
}

pub(crate) fn store_key(key: &str) -> StoreKey {
    StoreKey::new(namespace(), &IdempotencyKey::new(key.to_owned()).unwrap())
}

/// A store with a clock of its own, and one key of it.
pub(crate) struct Planter {
    pub(crate) store: MemoryStore,
    seconds: Arc<AtomicU64>,
    key: IdempotencyKey,
    owners: Cell<u64>,
}

impl Planter {
    pub(crate) fn new(key: &str) -> Self {
        let seconds = Arc::new(AtomicU64::new(START.as_secs()));
        let clock = seconds.clone();
        let store = MemoryStore::with_clock(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed))
        });
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        Self { store, seconds, key, owners: Cell::new(0) }
    }

    /// The same store, for another key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        Self {
            store: self.store.clone(),
            seconds: self.seconds.clone(),
            key,
            owners: Cell::new(self.owners.get() + 1_000),
        }
    }

    pub(crate) fn key(&self) -> StoreKey {
        StoreKey::new(namespace(), &self.key)
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.seconds.fetch_add(time.as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn apply(&self, operation: Operation) -> Reply {
        let command = Command { key: self.key(), operation, retention: Retention::default() };
        let answer = self.store.apply(command).now_or_never().expect("the store does not wait");
        answer.unwrap().reply
    }

    /// Grants the key for this record. An empty text is a grant without details.
    pub(crate) fn acquire(&self, record: &str) -> Grant {
        self.acquire_for(record, TTL)
    }

    /// As [`acquire`](Self::acquire), with this time to live of the lock.
    pub(crate) fn acquire_for(&self, record: &str, ttl: Duration) -> Grant {
        self.owners.set(self.owners.get() + 1);
        let owner = Owner::new(self.owners.get()).unwrap();
        let details = record.parse().ok().map(|at: Coordinates| {
            Details::builder(owner).key(&self.key).instance("pod-7/1").coordinates(&at).build()
        });
        let reply = self.apply(Operation::Acquire {
            owner,
            ttl,
            max_attempts: MAX_ATTEMPTS,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details,
        });
        match reply {
            Reply::Acquired { token, .. } | Reply::Exhausted { token, .. } => {
                Grant { token, owner }
            }
            refused => panic!("not granted: {refused:?}"),
        }
    }

    /// As [`acquire`](Self::acquire), for a grant that is not settled.
    pub(crate) fn start(&self, record: &str) {
        self.acquire(record);
    }

    pub(crate) fn fail(&self, grant: Grant, delay: Duration, last: bool) {
        let error = "card declined".into();
        let reply = self.apply(Operation::Fail { grant, delay, last, error });
        assert_eq!(reply, Reply::Retrying);
    }

    /// Fails all attempts, without backoff.
    pub(crate) fn exhaust(&self, record: &str) {
        for _ in 0..MAX_ATTEMPTS {
            self.fail(self.acquire(record), Duration::ZERO, false);
        }
    }

    /// Completes the key, with the details if this record is named.
    pub(crate) fn complete(&self, grant: Grant, record: &str) {
        let details = record.parse().ok().map(|at: Coordinates| {
            Details::builder(grant.owner).key(&self.key).coordinates(&at).build()
        });
        let reply = self.apply(Operation::Complete {
            grant,
            attempt: 1,
            fingerprint: None,
            reply: None,
            details,
        });
        assert_eq!(reply, Reply::Completed);
    }

    pub(crate) fn give_up(&self, grant: Grant) {
        let reply = self.apply(Operation::GiveUp { grant, reason: "card stolen".into() });
        assert_eq!(reply, Reply::GivenUp);
    }
}
