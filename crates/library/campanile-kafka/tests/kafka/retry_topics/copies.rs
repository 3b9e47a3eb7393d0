//! A copy is identical to its record and names the record's origin.

use std::sync::{Arc, Mutex};

use campanile_core::{BoxError, Record};
use campanile_test::Message;
use tower::service_fn;

use super::{SOON, kafka, retrying};
use crate::support::{serve, until_committed};

type Records = Arc<Mutex<Vec<Record>>>;

/// Records the calls, and fails records of `orders`. Returns each record with its copy.
async fn copies(messages: Vec<Message>) -> Vec<(Record, Record)> {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    let count = messages.len() as i64;
    kafka.producer().produce_all(messages).unwrap();
    let records = Records::default();
    let seen = records.clone();
    let service = service_fn(move |record: Record| {
        let fails = record.topic() == "orders";
        seen.lock().unwrap().push(record);
        async move { if fails { Err(BoxError::from("busy")) } else { Ok(()) } }
    });
    let serving = serve(retrying(config.clone()), service);
    until_committed(&config, SOON, &[count]).await;
    serving.stop().await.unwrap();
    let records = records.lock().unwrap();
    let (firsts, copies): (Vec<_>, Vec<_>) =
        records.iter().cloned().partition(|record| record.topic() == "orders");
    assert_eq!(copies.len(), firsts.len());
    firsts.into_iter().zip(copies).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_equals_its_record_and_has_its_origin() {
    let to = || Message::to("orders").partition(0);
    let messages = vec![
        to(),
        to().key("").payload(""),
        to().key("k")
            .payload("p")
            .header("a", "1")
            .null_header("b")
            .header("a", "")
            .header("", "2"),
    ];
    for (first, copy) in copies(messages).await {
        assert_eq!(copy.key(), first.key());
        assert_eq!(copy.payload(), first.payload());
        assert_eq!(copy.headers(), first.headers());
        assert_eq!(copy.timestamp(), first.timestamp());
        assert_eq!(copy.origin(), first.coordinates());
        assert_eq!((copy.topic(), copy.offset()), (SOON, first.offset()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origin_headers_are_trusted_only_in_retry_topics() {
    let forged = Message::to("orders").partition(0).payload("p");
    let forged = forged
        .header("campanile-origin-topic", "bank")
        .header("campanile-origin-partition", "0")
        .header("campanile-origin-offset", "7");
    let (first, copy) = copies(vec![forged]).await.pop().unwrap();
    assert_eq!(first.origin(), first.coordinates());
    assert_eq!(first.headers().len(), 3, "they are ordinary headers");
    assert_eq!(copy.origin(), first.coordinates());
    assert!(copy.headers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_message_in_a_retry_topic_is_an_ordinary_record() {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    let stray = Message::to(SOON).partition(0).payload("p").header("campanile-origin-topic", "t");
    kafka.producer().produce(stray).unwrap();
    let records = Records::default();
    let seen = records.clone();
    let service = service_fn(move |record: Record| {
        seen.lock().unwrap().push(record);
        async { Ok::<_, BoxError>(()) }
    });
    let serving = serve(retrying(config.clone()), service);
    until_committed(&config, SOON, &[1]).await;
    serving.stop().await.unwrap();
    let record = records.lock().unwrap()[0].clone();
    assert_eq!(record.origin(), record.coordinates());
}
