//! expire: change when an entry expires, on behalf of an operator. Not an operation of [`step`]: the
//! entry itself stays as it is, and so do the answers to its owner until it expires.
//!
//! [`step`]: super::step()

use std::time::{Duration, SystemTime};

use crate::entry::{Entry, Micros, State};
use crate::limits::MIN_RETENTION;

/// Whether an operator may change when an entry expires.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExpireOutcome {
    /// The entry is the one that was read, and expires as asked.
    Done,
    /// Nothing was changed: the entry is no longer the one that was read, or there is none.
    Changed,
    /// Nothing was changed: the entry's lock has not expired, or the entry would expire less than
    /// [`MIN_RETENTION`] after its last grant.
    Kept,
}

/// Decides whether an entry may expire `after` from `now`. `read` is the entry as the operator has read
/// it; `current` is the entry as the store has it now.
///
/// A store calls it under whatever makes the read and the write atomic for that key.
///
/// Every operation that changes an entry changes its state, its token, its owner or its `at`. A store
/// may therefore compare only these.
pub fn expire(
    current: Option<&Entry>,
    read: &Entry,
    after: Duration,
    now: SystemTime,
) -> ExpireOutcome {
    let identity = |entry: &Entry| (entry.state, entry.token, entry.owner, entry.at);
    match current {
        Some(entry) if identity(entry) == identity(read) => {
            let now = Micros::from(now);
            let is_locked = entry.state == State::Processing && now < entry.at;
            // Without an entry, only the clock keeps the next token above this one.
            let granted = Micros(entry.token.get());
            let is_recent = now.saturating_add(after) < granted.saturating_add(MIN_RETENTION);
            if is_locked || is_recent { ExpireOutcome::Kept } else { ExpireOutcome::Done }
        }
        _ => ExpireOutcome::Changed,
    }
}
