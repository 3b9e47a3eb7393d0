//! give_up: move the entry to FAILED.

use super::{held_by, owned_by};
use crate::entry::{Entry, Micros, State};
use crate::{Grant, Reply};

pub(super) fn apply(entry: &mut Option<Entry>, grant: Grant, reason: &str, now: Micros) {
    if let Some(entry) = held_by(entry, grant) {
        entry.enter_state(State::Failed, now);
        entry.tail.set_error(reason);
    }
}

pub(super) fn reply(after: Option<&Entry>, grant: Grant) -> Reply {
    match owned_by(after, grant) {
        None => Reply::Lost,
        Some(entry) if entry.state == State::Failed => Reply::GivenUp,
        Some(entry) => Reply::Settled(entry.state),
    }
}
