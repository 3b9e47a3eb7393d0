//! The results of acquisitions, for requests that waited for them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{Clock, Fingerprint, Namespace, StoreKey};

use super::request::Acquisition;

/// How long a result answers requests. Waiting requests arrive immediately; later, an operator may
/// have reopened the entry.
const BELIEVED: Duration = Duration::from_secs(1);

/// The result of an acquisition, from which requests that waited for it are answered without a
/// command.
#[derive(Debug)]
pub(super) struct End {
    known: Known,
    /// The fingerprint with which the key was acquired.
    fingerprint: Option<Fingerprint>,
    /// When the acquisition ended, by the keeper's clock.
    at: Duration,
}

/// What the store would answer to an acquire.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Completed {
        reply: Option<Bytes>,
        attempts: u32,
        completed_at: SystemTime,
    },
    Failed {
        attempts: u32,
        reason: Option<Box<str>>,
    },
    BackingOff {
        retry_after: Duration,
        attempts: u32,
    },
    /// Held by another process.
    Locked {
        retry_after: Duration,
    },
}

impl Known {
    /// Returns the part of an acquire's answer that holds for other requests as well.
    pub(super) fn of(answer: &Acquisition) -> Option<Self> {
        Some(match *answer {
            Acquisition::Duplicate { ref reply, attempts, completed_at } => {
                Self::Completed { reply: reply.clone(), attempts, completed_at }
            }
            Acquisition::Parked { attempts, ref reason } => {
                Self::Failed { attempts, reason: reason.clone() }
            }
            Acquisition::BackingOff { retry_after, attempts } => {
                Self::BackingOff { retry_after, attempts }
            }
            Acquisition::Locked { retry_after, .. } => Self::Locked { retry_after },
            _ => return None,
        })
    }
}

impl End {
    pub(super) fn new(known: Known, fingerprint: Option<Fingerprint>, at: Duration) -> Self {
        Self { known, fingerprint, at }
    }

    fn answer(&self, fingerprint: Option<Fingerprint>, now: Duration) -> Option<Acquisition> {
        // Only the store knows whether a different payload is a mismatch.
        let same_payload = fingerprint.is_none() || fingerprint == self.fingerprint;
        let age = now.saturating_sub(self.at);
        if !same_payload || age >= BELIEVED {
            return None;
        }
        // Subtract the age from a remaining time. If nothing is left, ask the store.
        let left = |time: Duration| time.checked_sub(age).filter(|left| !left.is_zero());
        Some(match self.known.clone() {
            Known::Completed { reply, attempts, completed_at } => {
                Acquisition::Duplicate { reply, attempts, completed_at }
            }
            Known::Failed { attempts, reason } => Acquisition::Parked { attempts, reason },
            Known::BackingOff { retry_after, attempts } => {
                Acquisition::BackingOff { retry_after: left(retry_after)?, attempts }
            }
            Known::Locked { retry_after } => {
                Acquisition::Locked { retry_after: left(retry_after)?, settled: None }
            }
        })
    }
}

/// The results for which a signal exists.
#[derive(Debug, Default)]
pub(super) struct Ends {
    by_key: HashMap<Id, Weak<OnceLock<End>>>,
    /// The size at which results without a signal are removed.
    sweep_at: usize,
}

/// A key as stores distinguish keys. The key itself may own memory of the application, which must
/// not be freed while the keeper's state is locked.
type Id = (Namespace, [u8; 16]);

/// A result that was looked up. Drop it after the keeper's state is unlocked, because it may be the
/// last reference.
pub(super) type Found = Arc<OnceLock<End>>;

impl Ends {
    pub(super) fn insert(&mut self, key: &StoreKey, end: Weak<OnceLock<End>>) {
        const LEAST: usize = 64;
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, end| end.strong_count() > 0);
            self.sweep_at = (self.by_key.len() * 2).max(LEAST);
        }
        self.by_key.insert(id(key), end);
    }

    /// Returns the result of the key's last acquisition, if a signal of it exists.
    pub(super) fn find(&mut self, key: &StoreKey) -> Option<Found> {
        // Usually the map is empty, and no key has to be hashed.
        if self.by_key.is_empty() {
            return None;
        }
        let id = id(key);
        let end = self.by_key.get(&id)?.upgrade();
        if end.is_none() {
            self.by_key.remove(&id);
        }
        end
    }
}

/// Returns the answer to an acquire that follows from a result, if there is one.
pub(super) fn answer(
    end: &Found,
    fingerprint: Option<Fingerprint>,
    clock: &Clock,
) -> Option<Acquisition> {
    end.get()?.answer(fingerprint, clock.now())
}

fn id(key: &StoreKey) -> Id {
    (key.namespace().clone(), *key.digest())
}

#[cfg(test)]
mod tests {
    use campanile_core::IdempotencyKey;

    use super::*;

    fn key(number: u32) -> StoreKey {
        let key = IdempotencyKey::new(number.to_string()).expect("not empty");
        StoreKey::new("payments".try_into().expect("a namespace"), key)
    }

    fn signal() -> Arc<OnceLock<End>> {
        let known = Known::Failed { attempts: 1, reason: None };
        Arc::new(OnceLock::from(End::new(known, None, Duration::ZERO)))
    }

    #[test]
    fn what_nobody_has_a_signal_of_takes_no_room() {
        let mut ends = Ends::default();
        let kept = signal();
        ends.insert(&key(0), Arc::downgrade(&kept));
        for number in 1..10_000 {
            ends.insert(&key(number), Arc::downgrade(&signal()));
        }
        assert!(ends.by_key.len() <= 128, "{}", ends.by_key.len());
        let clock = Clock::from_fn(|| Duration::ZERO);
        let found = ends.find(&key(0)).expect("its signal is kept");
        assert!(answer(&found, None, &clock).is_some());
        assert!(ends.find(&key(9_999)).is_none());
    }
}
