//! redrive: open a FAILED entry again, by an operator.

use crate::entry::{Entry, Micros, State};
use crate::{FencingToken, Reply};

/// With `force` also what is COMPLETED, and what is RETRYING: whether that is exhausted is not for
/// the entry to say (the attempts it may have are each acquire's), so the operator's word counts.
/// A lock is never taken away.
pub(super) fn apply(entry: &mut Option<Entry>, token: FencingToken, force: bool, now: Micros) {
    let Some(entry) = entry.as_mut().filter(|entry| entry.token == token) else {
        return;
    };
    let reopens = match entry.state {
        State::Processing => false,
        State::Retrying => force && !is_reopened(entry),
        State::Completed => force,
        State::Failed => true,
    };
    if reopens {
        reopen(entry, now);
    }
}

pub(super) fn reply(after: Option<&Entry>, token: FencingToken) -> Reply {
    match after.filter(|entry| entry.token == token) {
        None => Reply::Lost,
        Some(entry) if is_reopened(entry) => Reply::Reopened,
        Some(entry) => Reply::Settled(entry.state),
    }
}

/// The token stays: the next grant's must exceed it.
fn reopen(entry: &mut Entry, now: Micros) {
    entry.enter(State::Retrying, now);
    entry.doomed = false;
    entry.attempt = 0;
    entry.interrupts = 0;
    entry.burials = 0;
    entry.owner = None;
    entry.fingerprint = None;
    entry.tail.keep_error_only();
}

/// No grant leaves an entry without an owner.
fn is_reopened(entry: &Entry) -> bool {
    entry.state == State::Retrying && entry.attempt == 0 && entry.owner.is_none()
}
