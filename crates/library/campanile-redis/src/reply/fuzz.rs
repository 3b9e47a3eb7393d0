//! Fuzz target: what a script returns.

use std::time::{Duration, SystemTime};

use campanile_core::{
    Command, Entry, FencingToken, Grant, IdempotencyKey, Namespace, Operation, Owner, Reply,
    Retention, StoreKey,
};
use redis::Value;

use super::decode_answers;
use crate::script::Verb;

/// The first byte selects the operation; the others are what the server sends.
#[test]
fn script_reply() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/script_reply"))
        .for_each(|bytes: &[u8]| {
            let [selector, reply @ ..] = bytes else { return };
            let Ok(value) = redis::parse_redis_value(reply) else { return };
            let (verb, operation) = operation(*selector);
            let commands = ["a", "b", "c"].map(|key| command(key, operation.clone()));
            let Ok(answers) = decode_answers(value.clone(), verb, commands.iter()) else { return };
            assert_eq!(answers.len(), commands.len());
            let values = match value {
                Value::Array(values) => values,
                value => vec![value],
            };
            let now = time(&values[0]);
            assert!(answers.iter().flatten().all(|answer| answer.now == now));
            let mut previous = 0;
            for pair in values[1..].chunks(2) {
                let [Value::Int(index), value] = pair else { panic!("accepted {pair:?}") };
                assert!(previous < *index && *index <= 3);
                previous = *index;
                check_answer(value, answers[*index as usize - 1].as_ref().ok().map(|it| &it.reply));
            }
        });
}

/// What is not an entry is `Corrupt` or an error, and never treated as absent.
fn check_answer(value: &Value, reply: Option<&Reply>) {
    match value {
        Value::BulkString(bytes) => match (&bytes[..], reply) {
            (b"OOM", reply) => assert_eq!(reply, None),
            (b"ABSENT", reply) => assert!(reply.is_some()),
            (bytes, reply) if Entry::from_bytes(bytes).is_err() => {
                assert_eq!(reply, Some(&Reply::Corrupt));
            }
            (_, reply) => assert!(reply.is_some()),
        },
        _ => assert_eq!(reply, None),
    }
}

fn time(value: &Value) -> SystemTime {
    let Value::BulkString(bytes) = value else { panic!("accepted {value:?}") };
    let micros = u64::from_be_bytes(bytes[..].try_into().unwrap());
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

fn command(key: &str, operation: Operation) -> Command {
    let namespace = Namespace::try_from("n").unwrap();
    let key = StoreKey::new(namespace, &IdempotencyKey::new(key.to_owned()).unwrap());
    Command { key, operation, retention: Retention::default() }
}

fn operation(selector: u8) -> (Verb, Operation) {
    let (token, owner) = (FencingToken::new(7).unwrap(), Owner::new(1).unwrap());
    let (grant, ttl) = (Grant { token, owner }, Duration::from_secs(30));
    match selector % 9 {
        0 => {
            let (fingerprint, floor, details) = (None, token, None);
            let max_attempts = 3;
            (
                Verb::Acquire,
                Operation::Acquire { owner, ttl, max_attempts, fingerprint, floor, details },
            )
        }
        1 => (Verb::Renew, Operation::Renew { grant, ttl }),
        2 => {
            let (attempt, fingerprint, reply, details) = (1, None, None, None);
            (Verb::Complete, Operation::Complete { grant, attempt, fingerprint, reply, details })
        }
        3 => (Verb::Fail, Operation::Fail { grant, delay: ttl, last: false, error: "e".into() }),
        4 => (Verb::Release, Operation::Release { grant, ran: true }),
        5 => (Verb::Cancel, Operation::Cancel { owner }),
        6 => (Verb::GiveUp, Operation::GiveUp { grant, reason: "e".into() }),
        7 => (Verb::Redrive, Operation::Redrive { token, force: true }),
        _ => {
            let (name, result) = ("s".into(), "r".into());
            (Verb::RecordStep, Operation::RecordStep { grant, name, result })
        }
    }
}
