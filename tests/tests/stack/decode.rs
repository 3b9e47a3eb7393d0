//! Records that cannot be processed are named in the error and neither committed nor lost, or they
//! are skipped if so configured.

use std::error::Error;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, ConsumerError, OnGiveUp, Request, decode::DecodeError, error};
use campanile_test::Message;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tower::ServiceBuilder;

use super::{Payment, consumer_config, idempotency_layer, start_kafka};

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[tokio::test]
async fn undecodable_record_stops_consumer_and_hides_payload() {
    let kafka = start_kafka([r#"{"id":"secret"#]);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(idempotency_layer())
        .service_fn(async |_: Request<Payment>| Ok::<_, BoxError>(()));
    let consumer = Consumer::new(consumer_config(&kafka)).unwrap().subscribe(["payments"]);
    let stopped = consumer.serve(service).await;
    let stopped = stopped.unwrap_err();
    let ConsumerError::Stopped { at, .. } = &stopped else { panic!("{stopped:?}") };
    let coordinates = error::find::<DecodeError>(&stopped).unwrap().coordinates();
    assert_eq!(at, coordinates);
    let text = chain(&stopped);
    assert!(text.contains(&coordinates.to_string()), "{text}");
    assert!(text.contains("line 1 column"), "{text}");
    assert!(!text.contains("secret"), "{text}");

    let consumer: BaseConsumer = kafka.consumer_config("stack").create().unwrap();
    let mut partition = TopicPartitionList::new();
    partition.add_partition("payments", at.partition);
    let committed = consumer.committed_offsets(partition, Duration::from_secs(10)).unwrap();
    assert!(committed.elements()[0].offset().to_raw() < Some(1), "{committed:?}");
}

#[tokio::test]
async fn skip_policy_skips_unprocessable_records_and_continues() {
    let kafka = start_kafka([]);
    // Not JSON, another shape, an empty key; followed by a good record in the same partition.
    for payload in ["{", r#"{"name":"a"}"#, r#"{"id":""}"#, r#"{"id":"a"}"#] {
        let message = Message::to("payments").partition(0).payload(payload);
        kafka.producer().produce(message).unwrap();
    }
    let (done, mut seen) = tokio::sync::watch::channel(false);
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(idempotency_layer())
        .service_fn(move |_: Request<Payment>| {
            done.send_replace(true);
            std::future::ready(Ok::<_, BoxError>(()))
        });
    let summary = Consumer::new(consumer_config(&kafka))
        .unwrap()
        .subscribe(["payments"])
        .on_give_up(OnGiveUp::Skip)
        .serve(service)
        .with_graceful_shutdown(async move {
            let _ = seen.wait_for(|done| *done).await;
        })
        .await
        .unwrap();
    assert_eq!((summary.processed, summary.skipped), (1, 3));
}
