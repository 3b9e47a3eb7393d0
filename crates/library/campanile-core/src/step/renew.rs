//! renew: extend the lock.

use std::time::Duration;

use super::{held_by, owned_by};
use crate::entry::{Entry, Micros, State};
use crate::limits::MAX_LOCK_TTL;
use crate::{Grant, Reply};

/// Never shortens the lock, because a copy of an earlier renewal may arrive late.
pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, ttl: Duration, now: Micros) {
    if let Some(entry) = held_by(entry, grant) {
        entry.at = entry.at.max(now.saturating_add(ttl.min(MAX_LOCK_TTL)));
    }
}

pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match owned_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Processing => Reply::Renewed,
        Some(entry) => Reply::Settled(entry.state),
    }
}
