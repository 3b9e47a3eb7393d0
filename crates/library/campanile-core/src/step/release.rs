//! release: free the lock and decrement the attempt counter.

use super::{held_by, owned_by};
use crate::entry::{Entry, Micros, State};
use crate::limits::MAX_INTERRUPTS;
use crate::{Grant, Reply};

pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, ran: bool, now: Micros) {
    if let Some(entry) = held_by(entry, grant) {
        release_entry(entry, ran, now);
    }
}

/// If the entry is RETRYING because of a failure, this grant's `release` was not applied; the reply
/// is then Settled.
pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match owned_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Retrying && entry.released => Reply::Released,
        Some(entry) => Reply::Settled(entry.state),
    }
}

/// Frees the lock. The remaining fields are kept, so that a repeated command recognizes its own
/// grant.
///
/// If the handler had started, the attempt counter is decremented only a limited number of times: a
/// record that crashes the process on every run must run out of attempts. A give-up lock counted no
/// attempt.
pub(super) fn release_entry(entry: &mut Entry, ran: bool, now: Micros) {
    uncount_give_up(entry);
    let interrupted = ran && entry.interrupts < MAX_INTERRUPTS;
    if !entry.giving_up {
        if interrupted {
            entry.interrupts += 1;
        }
        if interrupted || !ran {
            entry.attempt = entry.attempt.saturating_sub(1);
        }
    }
    entry.enter_state(State::Retrying, now);
    entry.released = true;
}

/// Decrements the give-up counter. `give_ups` counts only give-up locks that were never settled,
/// because their process crashed.
pub(super) fn uncount_give_up(entry: &mut Entry) {
    if entry.giving_up {
        entry.give_ups = entry.give_ups.saturating_sub(1);
    }
}
