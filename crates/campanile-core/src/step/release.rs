//! release: give the lock up and hand the attempt back.

use super::{held, seen_by};
use crate::entry::{Entry, Micros, State};
use crate::limits::MAX_INTERRUPTS;
use crate::{Grant, Reply};

pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, ran: bool, now: Micros) {
    if let Some(entry) = held(entry, grant) {
        let_go(entry, ran, now);
    }
}

/// RETRYING by a failure is not what this grant's `release` would have made of it, and is told.
pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match seen_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Retrying && entry.released => Reply::Released,
        Some(entry) => Reply::Settled(entry.state),
    }
}

/// Frees the lock; all else is kept, so that a repeat finds whose it was.
///
/// Once the handler has begun, the attempt is handed back a bounded number of times: what brings
/// the process down at every run must come to its end. A burial lock has counted none.
pub(super) fn let_go(entry: &mut Entry, ran: bool, now: Micros) {
    hand_burial_back(entry);
    let interrupted = ran && entry.interrupts < MAX_INTERRUPTS;
    if !entry.burial {
        if interrupted {
            entry.interrupts += 1;
        }
        if interrupted || !ran {
            entry.attempt = entry.attempt.saturating_sub(1);
        }
    }
    entry.enter(State::Retrying, now);
    entry.released = true;
}

/// A burial that is let go was not interrupted: what counts are those that brought the process down.
pub(super) fn hand_burial_back(entry: &mut Entry) {
    if entry.burial {
        entry.burials = entry.burials.saturating_sub(1);
    }
}
