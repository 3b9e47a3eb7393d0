//! A record's copy in a retry topic, and the headers that refer to the original record.
//!
//! These headers contain, all as text, the original position and timestamp of the record, and the id of
//! its topic. The copy's own timestamp is the time of its publication, because its delay and the topic's retention
//! are measured from that.

use std::sync::Arc;

use bytes::Bytes;
use campanile_core::{Coordinates, Output, Record, Timestamp, millis};

/// The prefix of all these headers. In a record that is not a copy they mean nothing, and a copy
/// does not inherit them.
const PREFIX: &str = "campanile-origin-";
const TOPIC: &str = "campanile-origin-topic";
const TOPIC_ID: &str = "campanile-origin-topic-id";
const PARTITION: &str = "campanile-origin-partition";
const OFFSET: &str = "campanile-origin-offset";
/// In milliseconds, if the timestamp was set by the record's producer.
const CREATE_TIME: &str = "campanile-origin-create-time";
/// In milliseconds, if the timestamp was set by the broker.
const LOG_APPEND_TIME: &str = "campanile-origin-log-append-time";

/// Copies this record, for this topic.
pub(super) fn message(record: &Record, topic: Arc<str>) -> Output {
    let own = record.headers().iter().filter(|(name, _)| !name.starts_with(PREFIX));
    let mut headers: Vec<(String, Option<Bytes>)> =
        own.map(|(name, value)| (name.to_owned(), value.cloned())).collect();
    let mut add_header =
        |name: &str, value: String| headers.push((name.to_owned(), Some(value.into())));
    let origin = record.origin();
    add_header(TOPIC, origin.topic.to_string());
    if let Some(id) = record.topic_id() {
        add_header(TOPIC_ID, id.to_string());
    }
    add_header(PARTITION, origin.partition.to_string());
    add_header(OFFSET, origin.offset.to_string());
    if let Some((name, value)) = record.timestamp().map(time_header) {
        add_header(name, value);
    }
    let mut copy = Output::to(topic);
    copy.key = record.key().cloned();
    copy.payload = record.payload().cloned();
    copy.headers = headers;
    copy
}

/// The name and the value of the header that keeps the timestamp of a copied record.
fn time_header(timestamp: Timestamp) -> (&'static str, String) {
    let (name, at) = match timestamp {
        Timestamp::CreateTime(at) => (CREATE_TIME, at),
        Timestamp::LogAppendTime(at) => (LOG_APPEND_TIME, at),
    };
    (name, millis::of(at).to_string())
}

/// The contents of a copy's headers.
#[derive(Debug, Default)]
pub(crate) struct OriginHeaders {
    topic: Option<Arc<str>>,
    pub(crate) topic_id: Option<Arc<str>>,
    partition: Option<i32>,
    offset: Option<i64>,
    pub(crate) timestamp: Option<Timestamp>,
}

impl OriginHeaders {
    /// Consumes a header if it is one that only a copy has, and returns whether it is. If a header
    /// is repeated, the last value counts.
    pub(crate) fn consume(&mut self, name: &[u8], value: Option<&[u8]>) -> bool {
        if !name.starts_with(PREFIX.as_bytes()) {
            return false;
        }
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        let time = || text?.parse().ok().and_then(millis::time);
        match name {
            name if name == TOPIC.as_bytes() => self.topic = text.map(Arc::from),
            name if name == TOPIC_ID.as_bytes() => self.topic_id = text.map(Arc::from),
            name if name == PARTITION.as_bytes() => {
                self.partition = text.and_then(|t| t.parse().ok())
            }
            name if name == OFFSET.as_bytes() => self.offset = text.and_then(|t| t.parse().ok()),
            name if name == CREATE_TIME.as_bytes() => {
                self.timestamp = time().map(Timestamp::CreateTime);
            }
            name if name == LOG_APPEND_TIME.as_bytes() => {
                self.timestamp = time().map(Timestamp::LogAppendTime);
            }
            _ => {}
        }
        true
    }

    /// Takes the record's original position and timestamp. `None` if the headers do not contain the
    /// whole position: then the record is not one of our copies.
    pub(crate) fn into_origin(self) -> Option<(Coordinates, Option<Timestamp>)> {
        let Self { topic, partition, offset, timestamp, .. } = self;
        let coordinates = Coordinates { topic: topic?, partition: partition?, offset: offset? };
        Some((coordinates, timestamp))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use campanile_core::RecordBuilder;

    use super::*;

    fn record() -> RecordBuilder {
        Record::builder("payments", 3, 42)
            .key("k")
            .header("b", "1")
            .null_header("a")
            .header("b", "")
    }

    /// Parses a copy as a consumer of the retry topic does.
    fn parse(message: &Output) -> (OriginHeaders, Vec<&str>) {
        let mut origin = OriginHeaders::default();
        let other = message
            .headers
            .iter()
            .filter(|(name, value)| !origin.consume(name.as_bytes(), value.as_deref()));
        let other = other.map(|(name, _)| &**name).collect();
        (origin, other)
    }

    #[test]
    fn copy_has_its_records_contents_and_origin() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let times = [
            None,
            Some(Timestamp::CreateTime(at)),
            Some(Timestamp::LogAppendTime(SystemTime::UNIX_EPOCH - Duration::from_millis(1500))),
        ];
        for time in times {
            let record = match time {
                Some(time) => record().timestamp(time).build(),
                None => record().build(),
            };
            let copy = message(&record, "retry".into());
            assert_eq!((&*copy.topic, copy.key.as_deref()), ("retry", Some(&b"k"[..])));
            assert_eq!((copy.payload.as_deref(), copy.timestamp), (None, None), "a tombstone");
            let (origin, names) = parse(&copy);
            assert_eq!(names, ["b", "a", "b"]);
            assert_eq!(copy.headers[1].1, None);
            assert_eq!(origin.into_origin(), Some((record.coordinates().clone(), time)));
        }
    }

    #[test]
    fn copy_of_a_copy_keeps_the_first_origin() {
        let first = record().build().coordinates().clone();
        let copy = Record::builder("retry", 0, 7).origin(first.clone()).header(TOPIC, "forged");
        let copy = copy.header("campanile-origin-create-time", "1").build();
        let later = message(&copy, "later".into());
        let (origin, names) = parse(&later);
        assert!(names.is_empty());
        assert_eq!(origin.into_origin(), Some((first, None)));
    }

    #[test]
    fn record_without_complete_origin_is_no_copy() {
        let all = [(TOPIC, "t"), (PARTITION, "0"), (OFFSET, "0")];
        for (name, bad) in
            [(TOPIC, None), (PARTITION, Some("x")), (OFFSET, Some("-")), (OFFSET, None)]
        {
            let mut origin = OriginHeaders::default();
            for (name, value) in all {
                origin.consume(name.as_bytes(), Some(value.as_bytes()));
            }
            assert!(origin.consume(name.as_bytes(), bad.map(str::as_bytes)));
            assert_eq!(origin.into_origin(), None, "{name}: {bad:?}");
        }
        assert!(!OriginHeaders::default().consume(b"campanile-key", None));
    }
}
