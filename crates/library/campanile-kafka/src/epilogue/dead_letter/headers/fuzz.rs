//! Fuzz target: the headers of dead letters.

use bytes::Bytes;
use campanile_core::{FencingToken, IdempotencyKey, Namespace, Record, Timestamp, error, millis};

use super::cause::{MAX_MESSAGE, MAX_TRACE};
use super::{
    Cause, HEADER_OVERHEAD, Header, Letter, LetterHeaders, LetterLock, MAX_KEPT,
    is_dead_letter_header,
};
use crate::fuzz::record;

/// The names of the headers that are read or written, and one of the application.
const NAMES: &[&str] = &[
    "own",
    "campanile-cause",
    "campanile-key",
    "campanile-namespace",
    "campanile-token",
    "campanile-attempts",
    "campanile-give-ups",
    "campanile-truncated-payload-bytes",
    "campanile-truncated-headers",
    "kafka_dlt-exception-message",
    "kafka_dlt-original-topic",
    "kafka_dlt-original-partition",
    "kafka_dlt-original-offset",
    "kafka_dlt-original-timestamp",
    "kafka_dlt-original-timestamp-type",
    "__connect.errors.topic",
];

/// A record with any headers is read or refused, and its own letter is read as it was written.
#[test]
fn letter() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/letter")).for_each(
        |bytes: &[u8]| {
            let record = record(bytes, NAMES).build();
            match LetterHeaders::read(&record) {
                Ok(headers) => check_read(&headers, &record),
                Err(invalid) => {
                    let text = invalid.to_string();
                    assert!(NAMES.iter().any(|name| text.contains(&format!("`{name}`"))), "{text}");
                }
            }
            let text = String::from_utf8_lossy(bytes).repeat(20);
            let cause =
                Cause { key: IdempotencyKey::new(bytes.to_vec()), ..Cause::of(&*cause(&text)) };
            for truncated in [false, true] {
                check_written(&record, &cause, truncated);
            }
        },
    );
}

fn cause(text: &str) -> campanile_core::BoxError {
    error::permanent(text).into()
}

fn check_read(headers: &LetterHeaders, letter: &Record) {
    assert!(headers.lock.as_ref().is_none_or(|lock| lock.token.get() < 1 << 53));
    assert!(headers.key.as_ref().is_none_or(|key| !key.as_bytes().is_empty()));
    assert!(!format!("{headers:?}").is_empty());
    match headers.restore(letter) {
        Some(restored) => {
            assert_eq!(restored.topic, headers.origin.topic);
            assert!(!restored.headers.iter().any(|(name, _)| is_dead_letter_header(name)));
            assert_eq!(restored.payload.as_ref(), letter.payload());
        }
        None => assert!(headers.is_truncated),
    }
}

fn check_written(record: &Record, cause: &Cause, truncated: bool) {
    assert!(cause.message.len() <= MAX_MESSAGE && cause.trace.len() <= MAX_TRACE);
    let lock = LetterLock {
        namespace: Namespace::try_from("payments").unwrap(),
        token: FencingToken::new(7).unwrap(),
    };
    let letter = Letter { record, group: "billing", cause, lock: Some(&lock), truncated };
    let written = letter.headers();
    let read = publish(record, &written);
    let headers = LetterHeaders::read(&read).expect("our own letter");
    assert_eq!((&headers.origin, headers.lock.as_ref()), (record.origin(), Some(&lock)));
    assert_eq!(headers.is_truncated, truncated);
    assert_eq!(headers.error.as_deref(), Some(&*cause.message));
    let is_kept = |key: &IdempotencyKey| !truncated || key.as_bytes().len() <= MAX_KEPT;
    assert_eq!(headers.key, cause.key.clone().filter(is_kept));
    let own = |headers: &[Header]| -> Vec<Header> {
        let own = headers.iter().filter(|(name, _)| !is_dead_letter_header(name));
        own.cloned().collect()
    };
    let size = |(name, value): &Header| {
        HEADER_OVERHEAD + name.len() + value.as_ref().map_or(0, Bytes::len)
    };
    let all: Vec<Header> =
        record.headers().iter().map(|(name, value)| (name.to_owned(), value.cloned())).collect();
    if truncated {
        assert!(own(&written).iter().map(size).sum::<usize>() <= MAX_KEPT);
        return assert_eq!(headers.restore(&read), None);
    }
    let restored = headers.restore(&read).expect("the letter has its payload");
    assert_eq!(restored.headers, own(&all));
    assert_eq!(
        (restored.key.as_ref(), restored.payload.as_ref()),
        (record.key(), record.payload())
    );
    assert_eq!(headers.timestamp.map(in_millis), record.timestamp().map(in_millis));
}

fn in_millis(timestamp: Timestamp) -> (&'static str, i64) {
    match timestamp {
        Timestamp::CreateTime(at) => ("create", millis::of(at)),
        Timestamp::LogAppendTime(at) => ("append", millis::of(at)),
    }
}

/// The letter as its consumer gets it.
fn publish(record: &Record, headers: &[Header]) -> Record {
    let mut letter = Record::builder("payments.dead", 0, 7);
    if let Some(key) = record.key() {
        letter = letter.key(key.clone());
    }
    if let Some(payload) = record.payload() {
        letter = letter.payload(payload.clone());
    }
    for (name, value) in headers {
        letter = match value {
            Some(value) => letter.header(name.as_str(), value.clone()),
            None => letter.null_header(name.as_str()),
        };
    }
    letter.build()
}
