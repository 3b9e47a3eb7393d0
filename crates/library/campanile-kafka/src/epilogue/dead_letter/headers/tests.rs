//! Compares names and values with those that the Java classes named here were observed to write.

use std::fmt;
use std::time::{Duration, SystemTime};

use campanile_core::{
    BoxError, FencingToken, IdempotencyKey, Namespace, RecordBuilder, Timestamp, error,
};
use campanile_idempotency::{Backoff, IdempotencyConfig, IdempotencyError, MemoryStore, Runner};

use super::cause::{MAX_MESSAGE, MAX_TRACE};
use super::*;

fn record() -> RecordBuilder {
    Record::builder("payments", 3, 42).payload("p")
}

fn cause(error: impl Into<BoxError>) -> Cause {
    Cause::of(&*error.into())
}

fn letter<'a>(record: &'a Record, cause: &'a Cause) -> Letter<'a> {
    Letter { record, group: "billing", cause, lock: None, truncated: false }
}

fn lock() -> LetterLock {
    let namespace = Namespace::try_from("payments").unwrap();
    LetterLock { namespace, token: FencingToken::new(7).unwrap() }
}

/// Reads names and values as Java does.
fn decoded(headers: &[Header]) -> Vec<(&str, Option<&[u8]>)> {
    headers.iter().map(|(name, value)| (&**name, value.as_deref())).collect()
}

/// Reads the only header of this name as text.
fn text<'h>(headers: &'h [Header], name: &str) -> &'h str {
    let found: Vec<_> = headers.iter().filter(|(n, _)| n == name).collect();
    let [(_, Some(value))] = found[..] else { panic!("{name}: {found:?}") };
    std::str::from_utf8(value).unwrap()
}

/// `DeadLetterPublishingRecoverer` of spring-kafka 3.3.0, backed by a `MockProducer`, wrote these
/// names in this order and these values for this record, except for the class and the text of the
/// error, which are Java's there.
#[test]
fn spring_headers_equal_those_of_its_recoverer() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let record = record().timestamp(Timestamp::CreateTime(at)).build();
    let headers = letter(&record, &cause("card declined")).headers();
    let expected: [(&str, Option<&[u8]>); 11] = [
        ("kafka_dlt-exception-fqcn", Some(b"campanile.Error")),
        ("kafka_dlt-exception-cause-fqcn", Some(b"campanile.Error")),
        ("kafka_dlt-exception-message", Some(b"card declined")),
        ("kafka_dlt-exception-stacktrace", Some(b"campanile.Error: card declined")),
        ("kafka_dlt-original-topic", Some(b"payments")),
        ("kafka_dlt-original-partition", Some(b"\x00\x00\x00\x03")),
        ("kafka_dlt-original-offset", Some(b"\x00\x00\x00\x00\x00\x00\x00\x2a")),
        ("kafka_dlt-original-timestamp", Some(b"\x00\x00\x00\x00\x00\x00\x05\xdc")),
        ("kafka_dlt-original-timestamp-type", Some(b"CreateTime")),
        ("kafka_dlt-original-consumer-group", Some(b"billing")),
        ("campanile-cause", Some(b"error")),
    ];
    assert_eq!(decoded(&headers), expected);
}

/// As observed for the same class, with `TimestampType.LOG_APPEND_TIME` and `NO_TIMESTAMP_TYPE`.
#[test]
fn spring_timestamp_type_covers_all_kinds() {
    let timestamp = |record: Record| {
        let headers = letter(&record, &cause("x")).headers();
        let value = |name| headers.iter().find(|(n, _)| n == name).unwrap().1.clone().unwrap();
        let (at, kind) = ("kafka_dlt-original-timestamp", "kafka_dlt-original-timestamp-type");
        (value(at), value(kind))
    };
    let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
    let (at, kind) = timestamp(record().timestamp(Timestamp::LogAppendTime(before)).build());
    assert_eq!(
        (&at[..], &kind[..]),
        (&b"\xff\xff\xff\xff\xff\xff\xfa\x24"[..], &b"LogAppendTime"[..])
    );
    let (at, kind) = timestamp(record().build());
    assert_eq!(
        (&at[..], &kind[..]),
        (&b"\xff\xff\xff\xff\xff\xff\xff\xff"[..], &b"NoTimestampType"[..])
    );
}

#[test]
fn letter_of_a_copy_has_the_original_position() {
    let origin = record().build().origin().clone();
    let copy = Record::builder("payments.retry", 0, 7).payload("p").origin(origin).build();
    let (record, cause) = (record().build(), cause("x"));
    let of_copy = letter(&copy, &cause).headers();
    assert_eq!(of_copy, letter(&record, &cause).headers());
}

#[tokio::test]
async fn own_headers_have_key_token_attempts_and_give_up() {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let config = IdempotencyConfig::new("jobs").with_max_attempts(1).with_backoff(backoff);
    let runner = Runner::new(MemoryStore::new(), config).unwrap();
    let key = &b"\xff\x00key"[..];
    let failed = runner.run(key, async |_| Err::<(), _>("card declined")).await.unwrap_err();
    let headers = own_headers(&failed);
    assert_eq!(headers.class, "campanile.AttemptFailed");
    assert_eq!(headers.message, "attempt 1 of 1 failed: card declined");
    assert_eq!(
        (headers.key, headers.attempts, headers.give_ups),
        (key.to_vec(), "1".into(), "0".into())
    );
    // The letter was not published. Dropping the lock ends it, and the next grant is a give-up lock.
    drop(failed);
    let exhausted = loop {
        let error = runner.run(key, async |_| Ok::<_, BoxError>(())).await.unwrap_err();
        if !IdempotencyError::find(&*error).unwrap().is_contention() {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let headers = own_headers(&exhausted);
    assert_eq!(headers.class, "campanile.Exhausted");
    assert_eq!(headers.message, "no attempts left after 1; last error: card declined");
    assert_eq!(
        (headers.key, headers.attempts, headers.give_ups),
        (key.to_vec(), "1".into(), "1".into())
    );
}

struct OwnHeaders {
    class: String,
    message: String,
    key: Vec<u8>,
    attempts: String,
    give_ups: String,
}

fn own_headers(error: &BoxError) -> OwnHeaders {
    let (record, cause) = (record().build(), Cause::of(&**error));
    let lock = lock();
    let headers = Letter { lock: Some(&lock), ..letter(&record, &cause) };
    let headers = headers.headers();
    let text = |name| text(&headers, name).to_owned();
    assert_eq!((&*text("campanile-namespace"), &*text("campanile-token")), ("payments", "7"));
    let key = headers.iter().find(|(name, _)| name == "campanile-key").unwrap();
    OwnHeaders {
        class: text("kafka_dlt-exception-fqcn"),
        message: text("kafka_dlt-exception-message"),
        key: key.1.as_ref().unwrap().to_vec(),
        attempts: text("campanile-attempts"),
        give_ups: text("campanile-give-ups"),
    }
}

#[test]
fn wrapped_errors_map_to_class_and_cause() {
    let key = || IdempotencyKey::new("k").unwrap();
    let kinds = [
        (IdempotencyError::MissingKey, "campanile.MissingKey", "missing-key"),
        (IdempotencyError::InvalidKey("x".into()), "campanile.InvalidKey", "invalid-key"),
        (IdempotencyError::Mismatch { key: key() }, "campanile.Mismatch", "mismatch"),
    ];
    for (error, class, word) in kinds {
        let (record, cause) = (record().build(), cause(error::permanent(error)));
        let headers = letter(&record, &cause).headers();
        assert_eq!(text(&headers, "kafka_dlt-exception-fqcn"), class);
        assert_eq!(text(&headers, "campanile-cause"), word);
        assert_eq!(cause.attempts, None);
        assert_eq!(cause.key.is_some(), word == "mismatch");
    }
}

#[test]
fn record_headers_come_first_in_order() {
    let record = record()
        .header("b", "1")
        .null_header("a")
        .header("b", "2")
        .header("", "")
        .header("kafka_offset", "not a dead letter's")
        .build();
    let headers = letter(&record, &cause("x")).headers();
    let expected: [(&str, Option<&[u8]>); 5] = [
        ("b", Some(b"1")),
        ("a", None),
        ("b", Some(b"2")),
        ("", Some(b"")),
        ("kafka_offset", Some(b"not a dead letter's")),
    ];
    assert_eq!(decoded(&headers)[..5], expected);
}

#[test]
fn second_letter_describes_only_the_last_failure() {
    let first = letter(&record().header("trace", "t").build(), &cause("first")).headers();
    let mut again = Record::builder("payments", 0, 7);
    // Includes headers that only Spring or Kafka Connect set, and one that only a truncated letter has.
    for (name, value) in first.into_iter().chain([
        ("__connect.errors.topic".to_owned(), Some("x".into())),
        ("kafka_dlt-key-exception-fqcn".to_owned(), Some("x".into())),
        ("campanile-truncated-headers".to_owned(), Some("1".into())),
    ]) {
        again = again.header(name, value.unwrap());
    }
    let again = again.build();
    let second = cause("second");
    let plain = Record::builder("payments", 0, 7).header("trace", "t").build();
    assert_eq!(letter(&again, &second).headers(), letter(&plain, &second).headers());
}

#[test]
fn long_message_and_trace_are_cut_with_an_ellipsis() {
    for width in 0..4 {
        // Characters of three bytes each, after `width` characters of one byte.
        let long = "x".repeat(width) + &"€".repeat(MAX_TRACE);
        let cause = cause(long);
        for (text, bound) in [(&cause.message, MAX_MESSAGE), (&cause.trace, MAX_TRACE)] {
            assert!((bound - 2..=bound).contains(&text.len()), "{}", text.len());
            assert!(text.ends_with("€…"));
        }
    }
    let fits = "x".repeat(MAX_MESSAGE);
    assert_eq!(cause(fits.clone()).message, fits);
}

/// An error with a text that never ends.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        loop {
            f.write_str("on and ")?;
        }
    }
}

impl std::error::Error for Endless {}

#[test]
fn endless_error_makes_a_bounded_letter() {
    let deep = (0..1000).fold(BoxError::from("x"), |inner, _| error::permanent(inner).into());
    for error in [BoxError::from(Endless), deep] {
        let cause = cause(error);
        assert!(cause.message.ends_with('…') && cause.message.len() <= MAX_MESSAGE);
        assert!(cause.trace.ends_with('…') && cause.trace.len() <= MAX_TRACE);
    }
}

#[test]
fn truncated_letter_keeps_small_headers_and_counts_omitted() {
    let mut record =
        record().header("large", vec![0; MAX_KEPT]).header("small", "s").null_header("n");
    for _ in 0..10_000 {
        record = record.header("many", "m");
    }
    let (record, cause) = (record.build(), cause("x"));
    let whole = letter(&record, &cause).headers();
    let count = |headers: &[Header], name: &str| headers.iter().filter(|(n, _)| n == name).count();
    assert_eq!((count(&whole, "large"), count(&whole, "many")), (1, 10_000));
    assert_eq!(count(&whole, "campanile-truncated-headers"), 0);
    let headers = Letter { truncated: true, ..letter(&record, &cause) }.headers();
    let kept = count(&headers, "many");
    assert_eq!(decoded(&headers)[..2], [("small", Some(&b"s"[..])), ("n", None)]);
    assert_eq!(text(&headers, "campanile-truncated-payload-bytes"), "1");
    assert_eq!(text(&headers, "campanile-truncated-headers"), (10_001 - kept).to_string());
    let size: usize = headers.iter().map(|(n, v)| n.len() + v.as_ref().map_or(0, Bytes::len)).sum();
    assert!(kept > 500 && size < 2 * MAX_KEPT, "{kept} kept, {size} bytes");
}

#[test]
fn truncated_letter_has_the_whole_key_or_none() {
    let record = record().build();
    for (length, kept) in [(MAX_KEPT, true), (MAX_KEPT + 1, false)] {
        let key = IdempotencyKey::new(vec![b'k'; length]).unwrap();
        let cause = cause(IdempotencyError::Mismatch { key });
        let has_key = |truncated| {
            let headers = Letter { truncated, ..letter(&record, &cause) }.headers();
            headers.iter().any(|(name, _)| name == "campanile-key")
        };
        assert!(has_key(false));
        assert_eq!(has_key(true), kept);
    }
}

/// Reads a letter with these headers as a consumer of the dead-letter topic does.
fn received(headers: &[Header]) -> Record {
    let letter = Record::builder("payments.dead", 0, 1).key("k").payload("p");
    let letter = headers.iter().fold(letter, |letter, (name, value)| match value {
        Some(value) => letter.header(&**name, value.clone()),
        None => letter.null_header(&**name),
    });
    letter.build()
}

#[test]
fn letter_is_read_back() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let (cause, lock) = (cause("card declined"), lock());
    for at in [Timestamp::CreateTime(at), Timestamp::LogAppendTime(at)] {
        let own = record().timestamp(at).header("source", "web").null_header("trace").build();
        let letter = Letter { lock: Some(&lock), ..letter(&own, &cause) };
        let received = received(&letter.headers());
        let read = LetterHeaders::read(&received).unwrap();
        assert_eq!(read.origin.to_string(), "payments/3@42");
        assert_eq!((&*read.cause, read.error.as_deref()), ("error", Some("card declined")));
        assert_eq!((read.lock.as_ref(), read.key.as_ref()), (Some(&lock), None));
        assert_eq!(read.timestamp, Some(at));
        let restored = read.restore(&received).unwrap();
        assert_eq!(restored.timestamp, Some(at));
        assert_eq!((&*restored.topic, restored.payload.as_deref()), ("payments", Some(&b"p"[..])));
        assert_eq!(decoded(&restored.headers), [("source", Some(&b"web"[..])), ("trace", None)]);
    }
}

#[test]
fn truncated_letter_restores_no_record() {
    let (own, cause) = (record().build(), cause("x"));
    let truncated = Letter { truncated: true, ..letter(&own, &cause) };
    let received = received(&truncated.headers());
    let read = LetterHeaders::read(&received).unwrap();
    assert!(read.is_truncated && read.restore(&received).is_none());
}

#[test]
fn letter_with_invalid_header_is_an_error_that_names_it() {
    let (own, cause, lock) = (record().build(), cause("x"), lock());
    let letter = Letter { lock: Some(&lock), ..letter(&own, &cause) };
    let headers = letter.headers();
    for (name, invalid) in [
        ("campanile-cause", &b"\xff"[..]),
        ("campanile-token", b"7 "),
        ("campanile-namespace", b"Payments!"),
        ("kafka_dlt-original-topic", b"\xff"),
    ] {
        let mut headers = headers.clone();
        headers.iter_mut().find(|(n, _)| n == name).unwrap().1 = Some(invalid.into());
        let error = LetterHeaders::read(&received(&headers)).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    assert!(LetterHeaders::read(&received(&[])).is_err());
}
