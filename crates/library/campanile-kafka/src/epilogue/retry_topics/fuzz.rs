//! Fuzz target: the headers of copies in retry topics.

use bytes::Bytes;
use campanile_core::{Coordinates, Record, Timestamp, millis};

use super::copy::{OriginHeaders, message};
use crate::fuzz::record;

const NAMES: &[&str] = &[
    "own",
    "campanile-origin-topic",
    "campanile-origin-partition",
    "campanile-origin-offset",
    "campanile-origin-create-time",
    "campanile-origin-log-append-time",
    "campanile-origin-",
];

/// A record with any headers is a copy or none, and its own copy is read as it was written.
#[test]
fn copy() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/copy")).for_each(
        |bytes: &[u8]| {
            let record = record(bytes, NAMES).build();
            let headers = record.headers().iter().map(|(name, value)| (name, value.cloned()));
            let (origin, rest) = read(headers);
            assert!(rest.iter().all(|(name, _)| name == "own"));
            let copied = match origin {
                Some((origin, time)) => rebuild(&record, origin, time),
                None => record,
            };
            let copy = message(&copied, "retry".into());
            let headers = copy.headers.iter().map(|(name, value)| (&**name, value.clone()));
            let (origin, own) = read(headers);
            let time = copied.timestamp().map(whole_millis);
            assert_eq!(origin, Some((copied.origin().clone(), time)));
            assert_eq!(own, rest);
            assert_eq!(
                (copy.key.as_ref(), copy.payload.as_ref()),
                (copied.key(), copied.payload())
            );
        },
    );
}

type Origin = Option<(Coordinates, Option<Timestamp>)>;

/// Reads the headers as a consumer of a retry topic does. Returns also those of the record.
fn read<'a>(
    headers: impl Iterator<Item = (&'a str, Option<Bytes>)>,
) -> (Origin, Vec<(String, Option<Bytes>)>) {
    let (mut origin, mut rest) = (OriginHeaders::default(), Vec::new());
    for (name, value) in headers {
        if !origin.consume(name.as_bytes(), value.as_deref()) {
            rest.push((name.to_owned(), value));
        }
    }
    (origin.into_origin(), rest)
}

/// The record that a copy stands for.
fn rebuild(copy: &Record, origin: Coordinates, time: Option<Timestamp>) -> Record {
    let mut record = Record::builder("retry", 0, 7).origin(origin).key("key");
    if let Some(payload) = copy.payload() {
        record = record.payload(payload.clone());
    }
    if let Some(time) = time {
        record = record.timestamp(time);
    }
    for (name, value) in copy.headers().iter().filter(|(name, _)| *name == "own") {
        record = match value {
            Some(value) => record.header(name, value.clone()),
            None => record.null_header(name),
        };
    }
    record.build()
}

fn whole_millis(timestamp: Timestamp) -> Timestamp {
    let whole = |at| millis::time(millis::of(at)).expect("it was one");
    match timestamp {
        Timestamp::CreateTime(at) => Timestamp::CreateTime(whole(at)),
        Timestamp::LogAppendTime(at) => Timestamp::LogAppendTime(whole(at)),
    }
}
