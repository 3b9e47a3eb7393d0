//! Records and headers, as Kafka defines them.

use std::time::SystemTime;

use bytes::Bytes;
use campanile_core::{Record, RecordBuilder, Request, Timestamp};

#[test]
fn headers_keep_order_repeats_and_nulls() {
    let record =
        Record::builder("t", 0, 0).header("a", "1").null_header("b").header("a", "").build();
    let headers: Vec<_> = record.headers().iter().collect();
    let (one, empty) = (Bytes::from("1"), Bytes::new());
    assert_eq!(headers, [("a", Some(&one)), ("b", None), ("a", Some(&empty))]);
    assert_eq!(record.headers().all("a").collect::<Vec<_>>(), [Some(&one), Some(&empty)]);
    assert_eq!(record.headers().all("b").collect::<Vec<_>>(), [None]);
    assert_eq!(record.headers().all("c").count(), 0);
}

#[test]
fn header_lookup_returns_last_value() {
    let record = Record::builder("t", 0, 0)
        .header("a", "1")
        .header("a", "2")
        .header("null", "1")
        .null_header("null")
        .header("latin", &b"caf\xe9"[..])
        .build();
    let headers = record.headers();
    assert_eq!((headers.get("a"), headers.get_str("a")), (Some(&b"2"[..]), Some("2")));
    assert_eq!((headers.get("null"), headers.get_str("null")), (None, None));
    assert_eq!((headers.get("latin"), headers.get_str("latin")), (Some(&b"caf\xe9"[..]), None));
    assert_eq!((headers.get("A"), headers.get_str("A")), (None, None));
}

#[test]
fn null_payload_differs_from_empty_payload() {
    assert_eq!(Record::builder("t", 0, 0).build().payload(), None);
    let empty = Record::builder("t", 0, 0).payload("").build();
    assert_eq!(empty.payload(), Some(&Bytes::new()));
}

#[test]
fn debug_hides_key_payload_and_headers() {
    let record = Record::builder("payments", 3, 42)
        .key("secret")
        .payload("secret")
        .header("id", "secret")
        .build();
    let text = format!("{record:?} {:?}", record.headers());
    assert!(text.contains("payments/3@42"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn request_parts_round_trip() {
    let mut request = Request::new(Record::builder("t", 0, 7).build(), 1_u8);
    request.extensions_mut().insert("kept");
    *request.body_mut() += 1;
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, body).map(u32::from);
    assert_eq!((request.record().offset(), *request.body()), (7, 2));
    assert_eq!(request.extensions().get::<&str>(), Some(&"kept"));
}

#[test]
fn record_size_counts_all_parts() {
    let size = |builder: RecordBuilder| builder.build().size();
    let empty = || Record::builder("t", 0, 0);
    assert!(size(empty()) >= size_of::<Record>());
    assert_eq!(size(empty().key(vec![0; 100])), size(empty()) + 100);
    assert_eq!(size(empty().payload(vec![0; 1000])), size(empty()) + 1000);
    let header = size(empty().null_header("")) - size(empty());
    assert!(header > 0);
    let full = empty().key("k").payload("pp").header("abc", "defg").null_header("hijklm");
    assert_eq!(size(full), size(empty()) + 1 + 2 + 3 + 4 + 6 + 2 * header);
}

#[test]
fn record_returns_what_it_was_built_with() {
    let timestamp = Timestamp::CreateTime(SystemTime::UNIX_EPOCH);
    let record = Record::builder("payments", 3, 42).key("account").timestamp(timestamp).build();
    assert_eq!((record.topic(), record.partition(), record.offset()), ("payments", 3, 42));
    assert_eq!(record.key(), Some(&Bytes::from("account")));
    assert_eq!(record.timestamp(), Some(timestamp));
    assert_eq!((record.headers().len(), record.headers().is_empty()), (0, true));
    let record = Record::builder("payments", 3, 42).header("a", "1").null_header("b").build();
    assert_eq!((record.headers().len(), record.headers().is_empty()), (2, false));
    assert_eq!((record.key(), record.timestamp()), (None, None));
}

#[test]
fn record_remembers_a_wait_for_another_process() {
    let record = Record::builder("t", 0, 0).build();
    assert!(!record.attempt().has_waited_elsewhere());
    record.attempt().set_waited_elsewhere();
    assert!(record.attempt().has_waited_elsewhere());
}
