//! The scripts, run as `step` on the entries. The differential tests hold both equal.

use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use campanile_core::{
    Details, Entry, FencingToken, Fingerprint, Grant, Operation, Owner, Reply as Replied, step,
};
use campanile_test::simulation::read_details;

use super::resp::Reply;
use crate::script::Verb;

/// A call of a script.
pub(super) struct ScriptCall<'a> {
    pub(super) verb: Verb,
    pub(super) keys: &'a [Vec<u8>],
    args: &'a [Vec<u8>],
}

impl<'a> ScriptCall<'a> {
    /// Splits what follows the script in `EVAL` and `EVALSHA`.
    pub(super) fn new(verb: Verb, rest: &'a [Vec<u8>]) -> Self {
        let (count, rest) = rest.split_first().expect("a number of keys");
        let (keys, args) = rest.split_at(number(count) as usize);
        Self { verb, keys, args }
    }

    /// The operation on the key at this index.
    pub(super) fn operation(&self, index: usize) -> Operation {
        let shared = match self.verb {
            Verb::Acquire => 4,
            Verb::Renew => 2,
            _ => 1,
        };
        let mut item = &self.args[shared + index][..];
        let item = &mut item;
        match self.verb {
            Verb::Acquire => Operation::Acquire {
                owner: owner(item),
                ttl: Duration::from_micros(number(&self.args[0])),
                max_attempts: number(&self.args[1]) as u16,
                fingerprint: Fingerprint::from_bits(item.get_u64()),
                floor: FencingToken::new(number(&self.args[3])).expect("a token"),
                details: details(&mut &self.args[shared + self.keys.len() + index][..]),
            },
            Verb::Renew => Operation::Renew {
                ttl: Duration::from_micros(number(&self.args[0])),
                grant: grant(item),
            },
            Verb::Complete => complete(item),
            Verb::Fail => Operation::Fail {
                grant: grant(item),
                delay: Duration::from_micros(item.get_u64()),
                last: item.get_u8() != 0,
                error: text(item),
            },
            Verb::Release => Operation::Release { grant: grant(item), ran: item.get_u8() != 0 },
            Verb::Cancel => Operation::Cancel { owner: owner(item) },
            Verb::GiveUp => Operation::GiveUp { grant: grant(item), reason: text(item) },
            Verb::RecordStep => record_step(item),
            Verb::Redrive => Operation::Redrive {
                token: FencingToken::new(item.get_u64()).expect("a token"),
                force: item.get_u8() != 0,
            },
        }
    }

    /// Runs the operation on the key at this index. Returns the entry after it, the reply of `step`,
    /// and what the script lists for the key, if anything.
    pub(super) fn run(
        &self,
        index: usize,
        before: Option<Entry>,
        now: SystemTime,
    ) -> (Option<Entry>, Replied, Option<Reply>) {
        let operation = self.operation(index);
        let is_new = before.is_none();
        let (after, reply) = step(before, &operation, now);
        let is_usual = match self.verb {
            Verb::Acquire => is_new,
            Verb::Renew => reply == Replied::Renewed,
            Verb::Complete => reply == Replied::Completed,
            Verb::Fail => reply == Replied::Retrying,
            Verb::Release | Verb::Cancel => reply == Replied::Released,
            Verb::GiveUp => reply == Replied::GivenUp,
            Verb::Redrive => reply == Replied::Reopened,
            Verb::RecordStep => reply == Replied::StepRecorded,
        };
        let listed = (!is_usual).then(|| match &after {
            Some(entry) => Reply::Bulk(entry.to_bytes().to_vec()),
            None => Reply::text("ABSENT"),
        });
        (after, reply, listed)
    }
}

fn complete(item: &mut &[u8]) -> Operation {
    let attempt = item.get_u16();
    item.advance(2);
    let grant = grant(item);
    let fingerprint = Fingerprint::from_bits(item.get_u64());
    let kind = if item.has_remaining() { item.get_u8() } else { 0 };
    let has = |has_details, has_reply| kind == Entry::completed_tail_kind(has_details, has_reply);
    let details = if has(true, true) || has(true, false) { details(item) } else { None };
    let reply =
        if has(true, true) || has(false, true) { Some(Bytes::copy_from_slice(item)) } else { None };
    Operation::Complete { grant, attempt, fingerprint, reply, details }
}

fn record_step(item: &mut &[u8]) -> Operation {
    let grant = grant(item);
    let (name, result) = item[1..].split_at(item[0].into());
    let result = Bytes::copy_from_slice(&result[4..]);
    Operation::RecordStep { grant, name: text(name), result }
}

/// Reads details after their length, as the first part of an entry's tail.
fn details(item: &mut &[u8]) -> Option<Details> {
    let length = usize::from(item.get_u16());
    let details = read_details(&item[..length]);
    item.advance(length);
    details
}

fn grant(item: &mut &[u8]) -> Grant {
    let token = FencingToken::new(item.get_u64()).expect("a token");
    Grant { token, owner: owner(item) }
}

fn owner(item: &mut &[u8]) -> Owner {
    Owner::new(item.get_u64()).expect("a nonce")
}

fn text(item: &[u8]) -> Box<str> {
    String::from_utf8_lossy(item).into()
}

/// Reads a number in decimal digits.
fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).expect("digits").parse().expect("a number")
}
