//! fail: record a failed attempt.

use std::time::Duration;

use super::release::hand_burial_back;
use super::{held, seen_by};
use crate::entry::{Entry, Micros, State};
use crate::limits::MAX_BACKOFF;
use crate::{Grant, Reply};

pub(super) fn apply(
    entry: &mut Option<Entry>,
    grant: Grant,
    delay: Duration,
    last: bool,
    error: &str,
    now: Micros,
) {
    if let Some(entry) = held(entry, grant) {
        hand_burial_back(entry);
        entry.enter(State::Retrying, now.plus(delay.min(MAX_BACKOFF)));
        entry.doomed |= last;
        entry.tail.note_error(error);
    }
}

/// If the entry is RETRYING because of a release, this grant's `fail` was not applied; the reply is
/// then Settled.
pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match seen_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Retrying && !entry.released => Reply::Retrying,
        Some(entry) => Reply::Settled(entry.state),
    }
}
