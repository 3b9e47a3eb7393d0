//! acquire: take the lock and count an attempt.

use std::time::Duration;

use super::mismatch::is_mismatch;
use crate::entry::{Entry, Micros, State};
use crate::limits::{MAX_ATTEMPTS, MAX_BACKOFF, MAX_LOCK_TTL};
use crate::{Details, FencingToken, Fingerprint, Owner, Reply};

/// The fields of the command.
pub(super) struct Acquire<'a> {
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    pub(super) max_attempts: u16,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) floor: FencingToken,
    pub(super) details: Option<&'a Details>,
}

impl Acquire<'_> {
    pub(super) fn apply(&self, entry: &mut Option<Entry>, now: Micros) {
        let Some(entry) = entry else {
            let mut first = Entry::new(State::Processing, now);
            if self.grant(&mut first, now) {
                *entry = Some(first);
            }
            return;
        };
        if is_mismatch(entry, self.fingerprint) {
            return;
        }
        let max_wait = match entry.state {
            State::Processing => MAX_LOCK_TTL,
            State::Retrying => MAX_BACKOFF,
            State::Completed | State::Failed => return,
        };
        if entry.owner == Some(self.owner) {
            if entry.state == State::Processing {
                entry.at = entry.at.max(self.expires_at(now));
            }
            return;
        }
        // Only after a clock went backwards can `at` be further away than any command allows.
        entry.at = entry.at.min(now.saturating_add(max_wait));
        if entry.at <= now {
            self.grant(entry, now);
        }
    }

    /// Derives the reply from the entry: it belongs to this owner if and only if `apply` granted
    /// it.
    pub(super) fn reply(&self, after: Option<&Entry>, now: Micros) -> Reply {
        let Some(entry) = after else {
            return Reply::Corrupt; // the grant failed: no token is left
        };
        if is_mismatch(entry, self.fingerprint) {
            return Reply::Mismatch;
        }
        let (token, attempt) = (entry.token, entry.attempt);
        let is_mine = entry.owner == Some(self.owner);
        match entry.state {
            State::Processing if is_mine && entry.giving_up => Reply::Exhausted {
                token,
                attempt,
                give_ups: entry.give_ups,
                last_error: error_text(entry),
            },
            State::Processing if is_mine => {
                Reply::Acquired { token, attempt, steps: entry.steps.clone() }
            }
            State::Processing if now < entry.at => Reply::Locked { remaining: now.until(entry.at) },
            State::Retrying if is_mine => Reply::Settled(State::Retrying),
            State::Retrying if now < entry.at => {
                Reply::BackingOff { remaining: now.until(entry.at), attempt }
            }
            // The attempt was due but was not granted: no token is left.
            State::Processing | State::Retrying => Reply::Corrupt,
            State::Completed => Reply::Duplicate {
                reply: entry.reply().cloned(),
                attempt,
                completed_at: entry.at(),
                details: entry.details.clone(),
            },
            State::Failed => Reply::AlreadyGivenUp { attempt, reason: error_text(entry) },
        }
    }

    /// Grants the lock to this owner. If no token is left, grants nothing and leaves the entry
    /// unchanged.
    ///
    /// The error is kept, so that a repeated command that is answered with Exhausted gets the last
    /// error again.
    fn grant(&self, entry: &mut Entry, now: Micros) -> bool {
        let Some(token) = self.next_token(entry.token, now) else {
            return false;
        };
        let exhausted = self.max_attempts > 0 && entry.attempt >= self.max_attempts;
        let giving_up = entry.permanent_failure || exhausted;
        if giving_up {
            entry.give_ups = entry.give_ups.saturating_add(1);
        } else if entry.attempt < MAX_ATTEMPTS {
            entry.attempt += 1;
        }
        entry.enter_state(State::Processing, self.expires_at(now));
        entry.giving_up = giving_up;
        entry.token = token;
        entry.owner = Some(self.owner);
        entry.fingerprint = self.fingerprint.or(entry.fingerprint);
        entry.set_details(self.details);
        true
    }

    /// Computes a token above the previous one of an existing entry, above that of an entry that is
    /// gone (by the clock), and above every token that the client has seen (by the floor).
    fn next_token(&self, previous: FencingToken, now: Micros) -> Option<FencingToken> {
        FencingToken::new((previous.get() + 1).max(now.0).max(self.floor.get() + 1))
    }

    fn expires_at(&self, now: Micros) -> Micros {
        now.saturating_add(self.ttl.min(MAX_LOCK_TTL))
    }
}

fn error_text(entry: &Entry) -> Option<Box<str>> {
    entry.error().map(Into::into)
}
