//! reject: move the entry to FAILED.

use super::{held, seen_by};
use crate::entry::{Entry, Micros, State};
use crate::{Grant, Reply};

pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, reason: &str, now: Micros) {
    if let Some(entry) = held(entry, grant) {
        entry.enter(State::Failed, now);
        entry.tail.note_error(reason);
    }
}

pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match seen_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Failed => Reply::Rejected,
        Some(entry) => Reply::Settled(entry.state),
    }
}
