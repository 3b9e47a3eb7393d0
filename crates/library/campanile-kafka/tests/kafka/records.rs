//! Whatever a producer sends arrives as a record: nothing panics, and nothing is lost.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Record, Timestamp};
use campanile_test::Message;
use rdkafka::bindings::{rd_kafka_producev, rd_kafka_resp_err_t, rd_kafka_vtype_t as V};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, error::KafkaError};
use tower::service_fn;

use crate::support::{TIMEOUT, consumer, mock, serve, until};

/// Receives the records of the topic until there are this many.
async fn receive(config: ClientConfig, count: usize) -> Vec<Record> {
    let records = Arc::new(Mutex::new(Vec::new()));
    let received = records.clone();
    let serving = serve(
        consumer(config, "orders"),
        service_fn(move |record: Record| {
            received.lock().unwrap().push(record);
            async { Ok::<_, BoxError>(()) }
        }),
    );
    until("all records are received", || records.lock().unwrap().len() == count).await;
    serving.stop().await.unwrap();
    let records = records.lock().unwrap();
    records.clone()
}

fn large(bootstrap: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("message.max.bytes", "4000000")
        .create()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_and_empty_stay_distinct_in_all_parts() {
    let kafka = mock("orders", 1, 0);
    let to = || Message::to("orders").partition(0);
    kafka
        .producer()
        .produce_all([
            to(),
            to().key("").payload(""),
            to().key("k").payload("p"),
            to().header("a", "1").header("b", "").null_header("a").header("a", "2"),
        ])
        .unwrap();
    let records = receive(kafka.consumer_config("g"), 4).await;
    let part = |bytes: Option<&bytes::Bytes>| bytes.map(|b| b.to_vec());
    let parts: Vec<_> = records.iter().map(|r| (part(r.key()), part(r.payload()))).collect();
    assert_eq!(parts[0], (None, None));
    assert_eq!(parts[1], (Some(vec![]), Some(vec![])));
    assert_eq!(parts[2], (Some(b"k".to_vec()), Some(b"p".to_vec())));
    assert!(records[0].headers().is_empty());
    let headers: Vec<_> =
        records[3].headers().iter().map(|(name, value)| (name.to_owned(), part(value))).collect();
    let header =
        |name: &str, value: Option<&str>| (name.to_owned(), value.map(|v| v.as_bytes().to_vec()));
    let expected =
        [header("a", Some("1")), header("b", Some("")), header("a", None), header("a", Some("2"))];
    assert_eq!(headers, expected);
    assert!(matches!(records[0].timestamp(), Some(Timestamp::CreateTime(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_keys_payloads_and_headers_arrive_complete() {
    let kafka = mock("orders", 1, 0);
    let producer = large(&kafka.bootstrap());
    let megabyte = vec![b'x'; 1 << 20];
    let one = |value| OwnedHeaders::new().insert(Header { key: "h", value });
    let many = (0..10_000).fold(OwnedHeaders::new(), |headers, n: i32| {
        headers.insert(Header { key: "n", value: Some(&n.to_be_bytes()) })
    });
    let record = || BaseRecord::<[u8], [u8]>::to("orders").partition(0);
    producer.send(record().key(&megabyte)).unwrap();
    producer.send(record().payload(&megabyte)).unwrap();
    producer.send(record().headers(one(Some(&megabyte)))).unwrap();
    producer.send(record().headers(many)).unwrap();
    producer.flush(TIMEOUT).unwrap();
    let records = receive(kafka.consumer_config("g"), 4).await;
    assert_eq!(records[0].key().unwrap(), &megabyte);
    assert_eq!(records[1].payload().unwrap(), &megabyte);
    assert_eq!(records[2].headers().get("h").unwrap(), megabyte);
    assert_eq!(records[3].headers().len(), 10_000);
    assert_eq!(records[3].headers().get("n").unwrap(), 9999_i32.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_name_that_is_not_utf_8_is_replaced() {
    let kafka = mock("orders", 1, 0);
    let producer = large(&kafka.bootstrap());
    produce_header(&producer, b"caf\xe9", b"latin").unwrap();
    produce_header(&producer, "café".as_bytes(), b"utf-8").unwrap();
    producer.flush(TIMEOUT).unwrap();
    let records = receive(kafka.consumer_config("g"), 2).await;
    let names: Vec<&str> =
        records.iter().flat_map(|r| r.headers().iter().map(|(name, _)| name)).collect();
    assert_eq!(names, ["caf\u{fffd}", "café"]);
    assert_eq!(records[0].headers().get_str("caf\u{fffd}"), Some("latin"));
}

/// Produces a record with a header of any name. rdkafka's own producer accepts names in UTF-8 only.
pub(crate) fn produce_header(
    producer: &BaseProducer,
    name: &[u8],
    value: &[u8],
) -> Result<(), KafkaError> {
    let (topic, name) = (CString::new("orders").unwrap(), CString::new(name).unwrap());
    // SAFETY: the producer is alive, each type is followed by the arguments that librdkafka
    // documents for it, and all of them are copied before the call returns.
    let code = unsafe {
        rd_kafka_producev(
            producer.client().native_ptr(),
            V::RD_KAFKA_VTYPE_TOPIC,
            topic.as_ptr(),
            V::RD_KAFKA_VTYPE_PARTITION,
            0_i32,
            V::RD_KAFKA_VTYPE_HEADER,
            name.as_ptr(),
            value.as_ptr(),
            value.len(),
            V::RD_KAFKA_VTYPE_END,
        )
    };
    producer.poll(Duration::ZERO);
    match code {
        rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::MessageProduction(code.into())),
    }
}
