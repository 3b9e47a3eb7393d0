//! fail: record a failed attempt.

use std::time::Duration;

use super::release::uncount_give_up;
use super::{held_by, owned_by};
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
    if let Some(entry) = held_by(entry, grant) {
        uncount_give_up(entry);
        entry.enter_state(State::Retrying, now.saturating_add(delay.min(MAX_BACKOFF)));
        entry.permanent_failure |= last;
        entry.tail.set_error(error);
    }
}

/// If the entry is RETRYING because of a release, this grant's `fail` was not applied; the reply is
/// then Settled.
pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match owned_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Retrying && !entry.released => Reply::Retrying,
        Some(entry) => Reply::Settled(entry.state),
    }
}
