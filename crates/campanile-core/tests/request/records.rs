//! Records and headers as Kafka has them.

use bytes::Bytes;
use campanile_core::{Record, Request};

#[test]
fn headers_keep_their_order_their_repeats_and_their_nulls() {
    let record =
        Record::builder("t", 0, 0).header("a", "1").null_header("b").header("a", "").build();
    let headers: Vec<_> = record.headers().iter().collect();
    let (one, empty) = (Bytes::from("1"), Bytes::new());
    assert_eq!(headers, [("a", Some(&one)), ("b", None), ("a", Some(&empty))]);
    assert_eq!(record.headers().last("a"), Some(Some(&empty)));
    assert_eq!(record.headers().last("b"), Some(None));
    assert_eq!(record.headers().last("c"), None);
    assert_eq!(record.headers().all("a").collect::<Vec<_>>(), [Some(&one), Some(&empty)]);
}

#[test]
fn a_null_payload_is_not_an_empty_one() {
    assert_eq!(Record::builder("t", 0, 0).build().payload(), None);
    let empty = Record::builder("t", 0, 0).payload("").build();
    assert_eq!(empty.payload(), Some(&Bytes::new()));
}

#[test]
fn debug_shows_neither_key_nor_payload_nor_header() {
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
fn a_request_is_taken_apart_and_put_together_without_loss() {
    let mut request = Request::new(Record::builder("t", 0, 7).build(), 1_u8);
    request.extensions_mut().insert("handed on");
    *request.body_mut() += 1;
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, body).map(u32::from);
    assert_eq!((request.record().offset(), *request.body()), (7, 2));
    assert_eq!(request.extensions().get::<&str>(), Some(&"handed on"));
}

#[test]
fn the_size_of_a_record_counts_all_that_it_holds() {
    let empty = Record::builder("t", 0, 0).build().size();
    let full = Record::builder("t", 0, 0)
        .key(vec![0; 100])
        .payload(vec![0; 1000])
        .header("name", vec![0; 10_000])
        .build()
        .size();
    assert!(full >= empty + 11_104, "{full} against {empty}");
}
