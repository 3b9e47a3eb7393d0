//! The results of acquisitions, for requests that waited for them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::telemetry::DuplicateCause;
use campanile_core::{Clock, Details, Fingerprint, StoreKey};

use super::request::Acquisition;

/// How long a result answers requests. Waiting requests arrive immediately; later, an operator may
/// have reopened the entry.
const RESULT_TTL: Duration = Duration::from_secs(1);

/// The result of an acquisition, from which requests that waited for it are answered without a
/// command.
#[derive(Debug)]
pub(super) struct LocalResult {
    answer: LocalAnswer,
    /// The fingerprint with which the key was acquired.
    fingerprint: Option<Fingerprint>,
    /// When the acquisition ended, by the keeper's clock.
    at: Duration,
}

/// What the store would answer to an acquire.
#[derive(Clone, Debug)]
pub(super) enum LocalAnswer {
    Completed {
        reply: Option<Bytes>,
        attempts: u32,
        completed_at: SystemTime,
        details: Option<Details>,
        /// The time from the completion to this result.
        age: Duration,
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

impl LocalAnswer {
    /// Keeps the part of an acquire's answer that holds for other requests as well.
    pub(super) fn from_acquisition(answer: &Acquisition) -> Option<Self> {
        Some(match *answer {
            Acquisition::Duplicate {
                ref reply, attempts, completed_at, ref details, age, ..
            } => {
                let (reply, details) = (reply.clone(), details.clone());
                Self::Completed { reply, attempts, completed_at, details, age }
            }
            Acquisition::AlreadyGivenUp { attempts, ref reason } => {
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

impl LocalResult {
    pub(super) fn new(answer: LocalAnswer, fingerprint: Option<Fingerprint>, at: Duration) -> Self {
        Self { answer, fingerprint, at }
    }

    fn answer(&self, fingerprint: Option<Fingerprint>, now: Duration) -> Option<Acquisition> {
        // Only the store knows whether a different payload is a mismatch.
        let is_same_payload = fingerprint.is_none() || fingerprint == self.fingerprint;
        let age = now.saturating_sub(self.at);
        if !is_same_payload || age >= RESULT_TTL {
            return None;
        }
        // Subtract the age from a remaining time. If nothing is left, ask the store.
        let remaining =
            |time: Duration| time.checked_sub(age).filter(|remaining| !remaining.is_zero());
        Some(match self.answer.clone() {
            LocalAnswer::Completed { reply, attempts, completed_at, details, age: before } => {
                let (cause, age) = (DuplicateCause::LocalRun, before + age);
                Acquisition::Duplicate { reply, attempts, completed_at, details, cause, age }
            }
            LocalAnswer::Failed { attempts, reason } => {
                Acquisition::AlreadyGivenUp { attempts, reason }
            }
            LocalAnswer::BackingOff { retry_after, attempts } => {
                Acquisition::BackingOff { retry_after: remaining(retry_after)?, attempts }
            }
            LocalAnswer::Locked { retry_after } => {
                Acquisition::Locked { retry_after: remaining(retry_after)?, settled: None }
            }
        })
    }
}

/// The results for which a signal exists.
#[derive(Debug, Default)]
pub(super) struct RecentResults {
    by_key: HashMap<StoreKey, Weak<OnceLock<LocalResult>>>,
    /// The size at which results without a signal are removed.
    cleanup_at: usize,
}

/// A result that was looked up. Drop it after the keeper's state is unlocked, because it may be the
/// last reference.
pub(super) type ResultRef = Arc<OnceLock<LocalResult>>;

impl RecentResults {
    pub(super) fn insert(&mut self, key: &StoreKey, result: Weak<OnceLock<LocalResult>>) {
        const MIN_CLEANUP_LEN: usize = 64;
        if self.by_key.len() >= self.cleanup_at {
            self.by_key.retain(|_, result| result.strong_count() > 0);
            self.cleanup_at = (self.by_key.len() * 2).max(MIN_CLEANUP_LEN);
        }
        self.by_key.insert(key.clone(), result);
    }

    /// Finds the result of the key's last acquisition, if a signal of it exists.
    pub(super) fn find(&mut self, key: &StoreKey) -> Option<ResultRef> {
        // Usually the map is empty, and no key has to be hashed.
        if self.by_key.is_empty() {
            return None;
        }
        let result = self.by_key.get(key)?.upgrade();
        if result.is_none() {
            self.by_key.remove(key);
        }
        result
    }
}

/// Answers an acquire from a result, if the result is known and allows it.
pub(super) fn answer(
    result: &ResultRef,
    fingerprint: Option<Fingerprint>,
    clock: &Clock,
) -> Option<Acquisition> {
    result.get()?.answer(fingerprint, clock.now())
}

#[cfg(test)]
mod tests {
    use campanile_core::IdempotencyKey;

    use super::*;

    fn key(number: u32) -> StoreKey {
        let key = IdempotencyKey::new(number.to_string()).expect("not empty");
        StoreKey::new("payments".try_into().expect("a namespace"), &key)
    }

    fn new_result() -> Arc<OnceLock<LocalResult>> {
        let answer = LocalAnswer::Failed { attempts: 1, reason: None };
        Arc::new(OnceLock::from(LocalResult::new(answer, None, Duration::ZERO)))
    }

    #[test]
    fn results_without_signal_are_removed() {
        let mut results = RecentResults::default();
        let kept = new_result();
        results.insert(&key(0), Arc::downgrade(&kept));
        for number in 1..10_000 {
            results.insert(&key(number), Arc::downgrade(&new_result()));
        }
        assert!(results.by_key.len() <= 128, "{}", results.by_key.len());
        let clock = Clock::from_fn(|| Duration::ZERO);
        let found = results.find(&key(0)).expect("its signal is kept");
        assert!(answer(&found, None, &clock).is_some());
        assert!(results.find(&key(9_999)).is_none());
    }

    #[test]
    fn results_are_searched_for_those_without_signal_whenever_they_have_doubled() {
        let mut results = RecentResults::default();
        let kept = new_result();
        for number in 0..1_000 {
            results.insert(&key(number), Arc::downgrade(&kept));
        }
        assert_eq!(results.cleanup_at, 1024);
    }
}
