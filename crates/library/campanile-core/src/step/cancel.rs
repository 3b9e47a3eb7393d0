//! cancel: undo an acquire with an unknown result.

use super::release::release_entry;
use crate::entry::{Entry, Micros, State};
use crate::{Owner, Reply};

/// A client that cancels has never seen a token, so the handler did not run.
pub(super) fn apply(entry: &mut Option<Entry>, owner: Owner, now: Micros) {
    if let Some(entry) = entry.as_mut().filter(|entry| entry.owner == Some(owner))
        && entry.state == State::Processing
    {
        release_entry(entry, false, now);
    }
}

pub(super) fn reply(after: Option<&Entry>, owner: Owner) -> Reply {
    match after {
        None => Reply::Released,
        Some(entry) if entry.owner != Some(owner) => Reply::Lost,
        Some(entry) if entry.state == State::Retrying => Reply::Released,
        Some(entry) => Reply::Settled(entry.state),
    }
}
