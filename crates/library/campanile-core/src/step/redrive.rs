//! redrive: reopen a FAILED entry, on behalf of an operator.

use crate::entry::{Entry, Micros, State};
use crate::{FencingToken, Reply};

/// Reopens a FAILED entry; with `force`, also a COMPLETED or RETRYING one.
///
/// The entry does not know whether it is exhausted, because each acquire carries its own maximum
/// number of attempts. The operator therefore decides. A held lock is never taken away.
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

/// Keeps the token, because the token of the next grant must exceed it.
fn reopen(entry: &mut Entry, now: Micros) {
    entry.enter_state(State::Retrying, now);
    entry.permanent_failure = false;
    entry.attempt = 0;
    entry.interrupts = 0;
    entry.give_ups = 0;
    entry.owner = None;
    entry.fingerprint = None;
    entry.tail.keep_error_only();
}

/// A grant always leaves an owner in the entry.
fn is_reopened(entry: &Entry) -> bool {
    entry.state == State::Retrying && entry.attempt == 0 && entry.owner.is_none()
}
