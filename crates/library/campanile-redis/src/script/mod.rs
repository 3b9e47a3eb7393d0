//! The scripts and the arguments of each, in one file for each Lua file.
//!
//! `ARGV` begins with what all keys of a call share ([`SharedArgs`]), so that commands with the
//! same shared arguments can be sent in one call. One item for each key follows; in acquire, then the
//! details of each grant.

mod acquire;
mod cancel;
mod complete;
mod fail;
mod give_up;
mod record_step;
mod redrive;
mod release;
mod renew;
mod text;

use std::time::Duration;

use campanile_core::{Command, FencingToken, Operation, Reply, State, step};
use redis::Cmd;

pub use self::text::Verb;
pub(crate) use self::text::{Script, Scripts};

/// The arguments that the commands of one call share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SharedArgs {
    pub(crate) verb: Verb,
    /// The time to live of the lock, in µs. Acquire and renew only.
    ttl: u64,
    /// Acquire only.
    max_attempts: u16,
    /// Acquire only. All commands that a keeper sends at once have the same.
    floor: FencingToken,
    /// How long the entry is kept after this operation, in ms.
    retention: u64,
}

impl SharedArgs {
    /// Splits a command into what it can share with others and its own item, which is appended to
    /// `item` without the details of a grant. Returns `None` for an operation that this version does
    /// not support.
    pub(crate) fn split(command: &Command, item: &mut Vec<u8>) -> Option<Self> {
        let after = |verb, state| Self {
            verb,
            ttl: 0,
            max_attempts: 0,
            floor: FencingToken::ZERO,
            retention: milliseconds(command.retention.of(state)),
        };
        Some(match command.operation {
            Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor, details: _ } => {
                acquire::write_item(item, owner, fingerprint);
                let ttl = acquire::ttl(ttl);
                Self { ttl, max_attempts, floor, ..after(Verb::Acquire, State::Processing) }
            }
            Operation::Renew { grant, ttl } => {
                renew::write_grant(item, grant);
                Self { ttl: acquire::ttl(ttl), ..after(Verb::Renew, State::Processing) }
            }
            Operation::Complete { grant, attempt, fingerprint, ref reply, ref details } => {
                let (reply, details) = (reply.as_deref(), details.as_ref());
                complete::write_item(item, grant, attempt, fingerprint, reply, details);
                after(Verb::Complete, State::Completed)
            }
            Operation::Fail { grant, delay, last, ref error } => {
                fail::write_item(item, grant, delay, last, error);
                after(Verb::Fail, State::Retrying)
            }
            Operation::Release { grant, ran } => {
                release::write_item(item, grant, ran);
                after(Verb::Release, State::Retrying)
            }
            Operation::Cancel { owner } => {
                cancel::write_item(item, owner);
                after(Verb::Cancel, State::Retrying)
            }
            Operation::GiveUp { grant, ref reason } => {
                give_up::write_item(item, grant, reason);
                after(Verb::GiveUp, State::Failed)
            }
            Operation::RecordStep { grant, ref name, ref result } => {
                record_step::write_item(item, grant, name, result);
                after(Verb::RecordStep, State::Processing)
            }
            Operation::Redrive { token, force } => {
                redrive::write_item(item, token, force);
                after(Verb::Redrive, State::Retrying)
            }
            _ => return None,
        })
    }

    /// Writes the details of the grant that this command asks for, as an argument of its own.
    pub(crate) fn write_details(operation: &Operation, argument: &mut Vec<u8>) {
        if let Operation::Acquire { details, .. } = operation {
            acquire::write_details(argument, details.as_ref());
        }
    }

    /// Whether the call has an argument for the details of each grant.
    pub(crate) fn has_details(&self) -> bool {
        self.verb == Verb::Acquire
    }

    /// Writes the shared arguments.
    pub(crate) fn write(&self, call: &mut Cmd) {
        match self.verb {
            Verb::Acquire => {
                call.arg(self.ttl).arg(self.max_attempts).arg(self.retention).arg(self.floor.get());
            }
            Verb::Renew => {
                call.arg(self.ttl).arg(self.retention);
            }
            _ => {
                call.arg(self.retention);
            }
        }
    }
}

/// The reply to an operation that the script did not report on, because it had its usual result.
pub(crate) fn default_reply(verb: Verb, command: &Command, now: std::time::SystemTime) -> Reply {
    match verb {
        // The key was absent, and `step` derives the grant from the script's `now`.
        Verb::Acquire => step(None, &command.operation, now).1,
        Verb::Renew => Reply::Renewed,
        Verb::Complete => Reply::Completed,
        Verb::Fail => Reply::Retrying,
        Verb::Release | Verb::Cancel => Reply::Released,
        Verb::GiveUp => Reply::GivenUp,
        Verb::Redrive => Reply::Reopened,
        Verb::RecordStep => Reply::StepRecorded,
    }
}

/// Converts to whole milliseconds, the unit of Redis's time to live. Rounds up, because Redis
/// refuses zero, and limits the result to some 30 000 years, because more would overflow in Redis.
pub(crate) fn milliseconds(retention: Duration) -> u64 {
    const MAX_MILLISECONDS: u128 = 1 << 50;
    let rounded_up = retention.as_nanos().div_ceil(1_000_000).clamp(1, MAX_MILLISECONDS);
    u64::try_from(rounded_up).expect("clamped")
}

/// Converts to whole microseconds. The protocol limits the durations passed here.
fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("at most the longest backoff")
}
