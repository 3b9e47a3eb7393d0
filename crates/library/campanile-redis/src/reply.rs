//! Decodes the return value of a script into answers.

use std::time::{Duration, SystemTime};

use campanile_core::{Answer, Command, Entry, Reply, reply};
use campanile_idempotency::StoreError;
use redis::Value;

use crate::failure::{Failure, out_of_memory};
use crate::script::{Verb, default_reply};

/// Decodes the answers to the commands of one call, in their order.
///
/// The script returns only the entries with an unusual result, as they are *after* the call. Their
/// replies are derived by the function that `step` uses, so a reply always reports what is stored.
pub(crate) fn decode_answers<'a>(
    value: Value,
    verb: Verb,
    commands: impl Iterator<Item = &'a Command>,
) -> Result<Vec<Result<Answer, StoreError>>, Failure> {
    let mut script_reply = ScriptReply::parse(value)?;
    let now = script_reply.now;
    let answer = |(index, command)| {
        let reply = match script_reply.take(index) {
            Some(value) => decode_value(value, command, now)?,
            None => default_reply(verb, command, now),
        };
        Ok(Answer { now, reply })
    };
    let answers = commands.enumerate().map(answer).collect();
    if script_reply.rest.len() > 0 {
        return Err(Failure::unexpected("a script returned an unexpected index"));
    }
    Ok(answers)
}

/// Decodes the value that a script returned for one key.
fn decode_value(value: Value, command: &Command, now: SystemTime) -> Result<Reply, StoreError> {
    let Value::BulkString(bytes) = value else {
        return Err(Failure::unexpected("a script returned something other than an entry").into());
    };
    Ok(match &*bytes {
        b"ABSENT" => reply(None, &command.operation, now),
        b"CORRUPT" => Reply::Corrupt,
        b"OOM" => return Err(out_of_memory()),
        bytes => match Entry::from_bytes(bytes) {
            Ok(entry) => reply(Some(&entry), &command.operation, now),
            Err(_) => Reply::Corrupt,
        },
    })
}

/// What a script returned: `now`, then pairs of an index and a value, in ascending order.
struct ScriptReply {
    now: SystemTime,
    rest: std::vec::IntoIter<Value>,
}

impl ScriptReply {
    fn parse(value: Value) -> Result<Self, Failure> {
        let mut rest = match value {
            Value::Array(values) => values.into_iter(),
            value => vec![value].into_iter(),
        };
        let now = rest.next().and_then(|now| parse_time(&now));
        let now = now.ok_or_else(|| Failure::unexpected("a script did not return the time"))?;
        Ok(Self { now, rest })
    }

    /// Takes the value for this index, counted from 0. Indices must be passed in ascending order.
    fn take(&mut self, index: usize) -> Option<Value> {
        let [Value::Int(next), _, ..] = *self.rest.as_slice() else {
            return None;
        };
        if usize::try_from(next) != Ok(index + 1) {
            return None;
        }
        self.rest.nth(1)
    }
}

/// Parses the 8 bytes in which a script returns the time.
fn parse_time(value: &Value) -> Option<SystemTime> {
    let Value::BulkString(bytes) = value else {
        return None;
    };
    let micros = u64::from_be_bytes(bytes.as_slice().try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use campanile_core::{IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};

    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    fn now() -> Value {
        Value::BulkString(NOW.to_be_bytes().to_vec())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    /// Decodes a script's value as the replies to three cancels.
    fn replies(value: Value) -> Result<Vec<Option<Reply>>, Failure> {
        let command = Command {
            key: StoreKey::new(
                Namespace::try_from("n").unwrap(),
                &IdempotencyKey::new("k").unwrap(),
            ),
            operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
            retention: Retention::default(),
        };
        let answers = decode_answers(value, Verb::Cancel, [&command; 3].into_iter())?;
        Ok(answers.into_iter().map(|answer| answer.ok().map(|answer| answer.reply)).collect())
    }

    #[test]
    fn unlisted_keys_get_the_default_reply() {
        let values = vec![now(), Value::Int(2), bulk("CORRUPT"), Value::Int(3), bulk("OOM")];
        assert_eq!(
            replies(Value::Array(values)).unwrap(),
            [Some(Reply::Released), Some(Reply::Corrupt), None]
        );
    }

    #[test]
    fn invalid_entry_is_corrupt_and_never_absent() {
        let values = vec![now(), Value::Int(1), bulk("CORRUP")];
        assert_eq!(replies(Value::Array(values)).unwrap()[0], Some(Reply::Corrupt));
    }

    #[test]
    fn mismatched_script_reply_is_an_error() {
        for value in [
            Value::Nil,
            bulk("short"),
            Value::Array(vec![]),
            Value::Array(vec![now(), Value::Int(1)]),
            Value::Array(vec![now(), Value::Int(4), bulk("OOM")]),
            Value::Array(vec![now(), Value::Int(2), bulk("OOM"), Value::Int(1), bulk("OOM")]),
            Value::Array(vec![now(), Value::Int(-1), bulk("OOM")]),
        ] {
            assert!(replies(value.clone()).is_err(), "{value:?}");
        }
    }
}
