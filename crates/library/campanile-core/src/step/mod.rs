//! The state machine of the protocol: the effect of every operation in every state.
//!
//! Each operation has a file with two halves: `apply` changes the entry, and `reply` derives the
//! reply from the entry *as it stands afterwards*. Because the second half needs nothing else, a
//! repeated command gets the same reply, and a store can run the first half elsewhere (in a script)
//! and derive the reply here.

mod acquire;
mod cancel;
mod complete;
mod expire;
mod fail;
mod give_up;
mod mismatch;
mod record_step;
mod redrive;
mod release;
mod renew;

use std::time::SystemTime;

use self::acquire::Acquire;
use self::complete::Complete;
pub use self::expire::{ExpireOutcome, expire};
use crate::entry::{Entry, Micros, State};
use crate::{Grant, Operation, Reply};

/// Applies one operation to the entry of a key (`None` if there is none), by a store's clock.
///
/// This function is pure: it performs no I/O, reads no clock and uses no randomness. A store calls
/// it under whatever makes the read and the write atomic for that key, and writes the entry back if
/// it changed. The function never deletes an entry and never panics.
///
/// `now` is truncated to whole microseconds, and times before 1970 become 1970. `ttl` and `delay`
/// are limited to [`MAX_LOCK_TTL`](crate::limits::MAX_LOCK_TTL) and
/// [`MAX_BACKOFF`](crate::limits::MAX_BACKOFF), and error texts to
/// [`MAX_ERROR_BYTES`](crate::limits::MAX_ERROR_BYTES). Counters saturate.
///
/// # Transitions
///
/// P, R, C and F are the states. `at` is the expiration of the lock (P), the time of the next
/// attempt (R), or the time of settlement (C, F). *Mine* means that both the token **and** the
/// owner of the entry are those of the command. A lock has expired when `now ≥ at`.
///
/// | operation | absent | P | R | C | F |
/// |---|---|---|---|---|---|
/// | acquire | grant | same owner: `at` rises to now + ttl → Acquired or Exhausted as before; other owner: live → Locked, expired → grant | same owner → Settled; not due → BackingOff; due → grant | Duplicate | AlreadyGivenUp |
/// | renew | Lost | mine: `at` rises to now + ttl → Renewed | mine: Settled | mine: Settled | mine: Settled |
/// | complete | → C → Completed | mine: → C → Completed | mine: Settled | mine: Completed | mine: Settled |
/// | fail | Lost | mine: → R, due after the delay → Retrying | mine: Retrying (Settled if released) | mine: Settled | mine: Settled |
/// | release | Lost | mine: → R, due immediately, attempt − 1 → Released | mine: Released (Settled if failed) | mine: Settled | mine: Settled |
/// | cancel | Released | same owner: as a release with `ran = false` | same owner: Released | same owner: Settled | same owner: Settled |
/// | record_step | Lost | mine: StepRecorded, or StepTooLarge without a change | mine: Settled | mine: Settled | mine: Settled |
/// | give_up | Lost | mine: → F → GivenUp | mine: Settled | mine: Settled | mine: GivenUp |
/// | redrive | Lost | Settled | already reopened: Reopened; forced: as F; else Settled | forced: as F; else Settled | → R, counters and owner cleared → Reopened |
///
/// If the entry is not mine (for redrive: has a different token), the reply is Lost. Lost, Settled,
/// Mismatch and Corrupt change nothing. An entry can be mine although the lock has expired.
///
/// * **Steps**: the entry keeps the steps of its handler, which the next Acquired contains, until it is
///   COMPLETED.
/// * **Grant**: moves the entry to P, with a token above the entry's, the command's floor and the
///   clock's microseconds. It counts an attempt → Acquired; if the entry has failed permanently or has no
///   attempt left, it counts a give-up instead → Exhausted. If no token below 2^53 is left →
///   Corrupt.
/// * **Mismatch** takes precedence: an acquire with a different fingerprint than the entry's, in
///   every state, except in R if the key was never tried.
/// * **Clamp**: an `at` that is further away than the longest lock (P) or backoff (R) is moved
///   closer by an acquire of another owner. Only a clock that went backwards leaves such an `at`.
pub fn step(
    mut entry: Option<Entry>,
    operation: &Operation,
    now: SystemTime,
) -> (Option<Entry>, Reply) {
    apply(&mut entry, operation, Micros::from(now));
    let reply = reply(entry.as_ref(), operation, now);
    (entry, reply)
}

/// Computes the reply that [`step`] gave, from the entry as it stood after the operation and the
/// same `now`.
///
/// For stores that change entries without `step`. The replies are equal because an operation that
/// is repeated at the same instant changes nothing and gets the same reply.
pub fn reply(after: Option<&Entry>, operation: &Operation, now: SystemTime) -> Reply {
    let now = Micros::from(now);
    match *operation {
        Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor, ref details } => {
            let details = details.as_ref();
            Acquire { owner, ttl, max_attempts, fingerprint, floor, details }.reply(after, now)
        }
        Operation::Renew { grant, .. } => renew::reply(after, grant),
        Operation::Complete { grant, attempt, fingerprint, ref reply, ref details } => {
            let (reply, details) = (reply.as_ref(), details.as_ref());
            Complete { grant, attempt, fingerprint, reply, details }.reply(after)
        }
        Operation::Fail { grant, .. } => fail::reply(after, grant),
        Operation::Release { grant, .. } => release::reply(after, grant),
        Operation::Cancel { owner } => cancel::reply(after, owner),
        Operation::RecordStep { grant, ref name, .. } => record_step::reply(after, grant, name),
        Operation::GiveUp { grant, .. } => give_up::reply(after, grant),
        Operation::Redrive { token, .. } => redrive::reply(after, token),
    }
}

fn apply(entry: &mut Option<Entry>, operation: &Operation, now: Micros) {
    match *operation {
        Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor, ref details } => {
            let details = details.as_ref();
            Acquire { owner, ttl, max_attempts, fingerprint, floor, details }.apply(entry, now);
        }
        Operation::Renew { grant, ttl } => renew::apply(entry, grant, ttl, now),
        Operation::Complete { grant, attempt, fingerprint, ref reply, ref details } => {
            let (reply, details) = (reply.as_ref(), details.as_ref());
            Complete { grant, attempt, fingerprint, reply, details }.apply(entry, now);
        }
        Operation::Fail { grant, delay, last, ref error } => {
            fail::apply(entry, grant, delay, last, error, now);
        }
        Operation::Release { grant, ran } => release::apply(entry, grant, ran, now),
        Operation::Cancel { owner } => cancel::apply(entry, owner, now),
        Operation::RecordStep { grant, ref name, ref result } => {
            record_step::apply(entry, grant, name, result);
        }
        Operation::GiveUp { grant, ref reason } => give_up::apply(entry, grant, reason, now),
        Operation::Redrive { token, force } => redrive::apply(entry, token, force, now),
    }
}

/// Only the last grant of an entry owns it. Every other grant is lost.
fn owned_by(entry: Option<&Entry>, grant: Grant) -> Option<&Entry> {
    entry.filter(|entry| entry.belongs_to(grant))
}

/// A grant holds the entry if it is the last one of the entry and has not ended.
fn held_by(entry: &mut Option<Entry>, grant: Grant) -> Option<&mut Entry> {
    entry.as_mut().filter(|entry| entry.belongs_to(grant) && entry.state == State::Processing)
}
