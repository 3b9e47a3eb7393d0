//! The protocol's state machine: what every operation does in every state.
//!
//! One file for each operation, with two halves: `apply` changes the entry, `reply` reads from the
//! entry *as it stands afterwards* what came of it. That the second half needs nothing else is what
//! makes a repeated command give the same answer, and what lets a store run the first half elsewhere
//! (in a script) and derive the answer here.

mod acquire;
mod cancel;
mod complete;
mod fail;
mod redrive;
mod reject;
mod release;
mod renew;

use std::time::SystemTime;

use self::acquire::Acquire;
use self::complete::Complete;
use crate::entry::{Entry, Micros, State};
use crate::{Grant, Operation, Reply};

/// Runs one operation on the entry of a key (`None`: there is none), by a store's clock.
///
/// Pure: no I/O, no clock, no chance. A store calls it under whatever makes read and write one step
/// for that key, and writes the entry back if it changed. It never deletes one and never panics.
///
/// `now` is truncated to whole microseconds and taken as 1970 if it is before that; `ttl` and `delay`
/// are limited to [`MAX_LOCK_TTL`](crate::limits::MAX_LOCK_TTL) and
/// [`MAX_BACKOFF`](crate::limits::MAX_BACKOFF), and an error's text to
/// [`MAX_ERROR_BYTES`](crate::limits::MAX_ERROR_BYTES). Counters stop at their ends.
///
/// # The table
///
/// P, R, C and F are the states, `at` is the end of the lock (P), the time of the next attempt (R) or
/// of the end (C, F). *Mine*: the entry's token **and** owner are the command's. A lock has expired
/// when `now ≥ at`.
///
/// | operation | absent | P | R | C | F |
/// |---|---|---|---|---|---|
/// | acquire | grant | same owner: `at` rises to now + ttl → Acquired or Exhausted as before; other owner: live → Locked, expired → grant | same owner → Settled; not due → BackingOff; due → grant | Duplicate | Parked |
/// | renew | Lost | mine: `at` rises to now + ttl → Renewed | mine: Settled | mine: Settled | mine: Settled |
/// | complete | → C → Completed | mine: → C → Completed | mine: Settled | mine: Completed | mine: Settled |
/// | fail | Lost | mine: → R, due after the delay → Retrying | mine: Retrying (Settled if released) | mine: Settled | mine: Settled |
/// | release | Lost | mine: → R, due at once, attempt handed back → Released | mine: Released (Settled if failed) | mine: Settled | mine: Settled |
/// | cancel | Released | same owner: as a release of what never ran | same owner: Released | same owner: Settled | same owner: Settled |
/// | reject | Lost | mine: → F → Rejected | mine: Settled | mine: Settled | mine: Rejected |
/// | redrive | Lost | Settled | reopened already: Reopened; forced: as F; else Settled | forced: as F; else Settled | → R, nothing counted, nobody's → Reopened |
///
/// What is not mine (for redrive: has another token) answers Lost. Lost, Settled, Mismatch and
/// Corrupt change nothing; "mine" does not ask whether the lock has expired.
///
/// * **Grant**: P, with a token above the entry's, the command's floor and the clock's microseconds.
///   It counts an attempt → Acquired; if the entry is doomed or has no attempt left it counts a burial
///   instead → Exhausted. If no token below 2^53 is left → Corrupt.
/// * **Mismatch**, before all else: acquire with another fingerprint than the entry's, in every state,
///   but not in R if the key was never tried.
/// * **Clamp**: an `at` further away than the longest lock (P) or back-off (R) is pulled in by an
///   acquire of another owner; only a clock that went back leaves one.
pub fn step(
    mut entry: Option<Entry>,
    operation: &Operation,
    now: SystemTime,
) -> (Option<Entry>, Reply) {
    apply(&mut entry, operation, Micros::from(now));
    let reply = reply(entry.as_ref(), operation, now);
    (entry, reply)
}

/// What [`step`] answered, from the entry as it stood after the operation, and the same `now`.
///
/// For a store that changes entries by other means than `step`. It holds because an operation that
/// is repeated at the same instant changes nothing and answers the same.
pub fn reply(after: Option<&Entry>, operation: &Operation, now: SystemTime) -> Reply {
    let now = Micros::from(now);
    match *operation {
        Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor } => {
            Acquire { owner, ttl, max_attempts, fingerprint, floor }.reply(after, now)
        }
        Operation::Renew { grant, .. } => renew::reply(after, grant),
        Operation::Complete { grant, attempt, fingerprint, ref reply } => {
            Complete { grant, attempt, fingerprint, reply: reply.as_ref() }.reply(after)
        }
        Operation::Fail { grant, .. } => fail::reply(after, grant),
        Operation::Release { grant, .. } => release::reply(after, grant),
        Operation::Cancel { owner } => cancel::reply(after, owner),
        Operation::Reject { grant, .. } => reject::reply(after, grant),
        Operation::Redrive { token, .. } => redrive::reply(after, token),
    }
}

fn apply(entry: &mut Option<Entry>, operation: &Operation, now: Micros) {
    match *operation {
        Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor } => {
            Acquire { owner, ttl, max_attempts, fingerprint, floor }.apply(entry, now);
        }
        Operation::Renew { grant, ttl } => renew::apply(entry, grant, ttl, now),
        Operation::Complete { grant, attempt, fingerprint, ref reply } => {
            Complete { grant, attempt, fingerprint, reply: reply.as_ref() }.apply(entry, now);
        }
        Operation::Fail { grant, delay, last, ref error } => {
            fail::apply(entry, grant, delay, last, error, now);
        }
        Operation::Release { grant, ran } => release::apply(entry, grant, ran, now),
        Operation::Cancel { owner } => cancel::apply(entry, owner, now),
        Operation::Reject { grant, ref reason } => reject::apply(entry, grant, reason, now),
        Operation::Redrive { token, force } => redrive::apply(entry, token, force, now),
    }
}

/// The entry, if this grant is its last; every other grant has lost.
fn seen_by(entry: Option<&Entry>, grant: Grant) -> Option<&Entry> {
    entry.filter(|entry| entry.is_of(grant))
}

/// The entry to change, if this grant is its last and has not ended.
fn held(entry: &mut Option<Entry>, grant: Grant) -> Option<&mut Entry> {
    entry.as_mut().filter(|entry| entry.is_of(grant) && entry.state == State::Processing)
}
