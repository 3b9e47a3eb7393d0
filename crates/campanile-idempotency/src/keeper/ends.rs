//! How acquisitions have ended, for those who waited for that.

use std::collections::HashMap;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::{Fingerprint, StoreKey};

use super::message::Acquisition;

/// For so long at most an end is believed: an operator may have reopened the entry since.
pub(super) const BELIEVED: Duration = Duration::from_secs(60);

/// How one acquisition has ended, so that who waited for it need not ask the store.
#[derive(Debug)]
pub(super) struct End {
    pub(super) known: Known,
    /// What it was acquired with.
    pub(super) fingerprint: Option<Fingerprint>,
    /// From then on the store is asked; by the keeper's clock.
    pub(super) until: Duration,
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
    /// By another process.
    Locked {
        retry_after: Duration,
    },
}

impl Known {
    /// What an acquire's answer says to others as well.
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
    fn answer(&self, fingerprint: Option<Fingerprint>, now: Duration) -> Option<Acquisition> {
        // Only the store knows whether another payload is a mismatch.
        let same_payload = fingerprint.is_none() || fingerprint == self.fingerprint;
        if !same_payload || now >= self.until {
            return None;
        }
        let retry_after = self.until - now;
        Some(match self.known.clone() {
            Known::Completed { reply, attempts, completed_at } => {
                Acquisition::Duplicate { reply, attempts, completed_at }
            }
            Known::Failed { attempts, reason } => Acquisition::Parked { attempts, reason },
            Known::BackingOff { attempts, .. } => Acquisition::BackingOff { retry_after, attempts },
            Known::Locked { .. } => Acquisition::Locked { retry_after, settled: None },
        })
    }
}

/// The ends that somebody has a signal of.
#[derive(Debug, Default)]
pub(super) struct Ends {
    by_key: HashMap<StoreKey, Weak<OnceLock<End>>>,
    /// At this size those that nobody wants any more are swept out.
    sweep_at: usize,
}

impl Ends {
    pub(super) fn insert(&mut self, key: StoreKey, end: Weak<OnceLock<End>>) {
        const LEAST: usize = 64;
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, end| end.strong_count() > 0);
            self.sweep_at = (self.by_key.len() * 2).max(LEAST);
        }
        self.by_key.insert(key, end);
    }

    /// What an acquire of this key comes to, as far as that is known.
    pub(super) fn answer(
        &mut self,
        key: &StoreKey,
        fingerprint: Option<Fingerprint>,
        now: Duration,
    ) -> Option<Acquisition> {
        // Mostly there is none, and then a key need not be hashed.
        if self.by_key.is_empty() {
            return None;
        }
        let end = self.by_key.get(key)?.upgrade();
        let answer = end.as_ref().and_then(|end| end.get()?.answer(fingerprint, now));
        if end.is_none() {
            self.by_key.remove(key);
        }
        answer
    }
}
