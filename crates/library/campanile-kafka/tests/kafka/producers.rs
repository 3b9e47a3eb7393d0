//! Events with an idempotency key from their producer.

use std::sync::{Arc, Mutex};

use campanile_core::{
    BoxError, DecodeLayer, IdempotencyKey, LockHandle, Outcome, Output, Request, key,
};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use campanile_kafka::Publisher;
use campanile_test::{KafkaServer, Proxy, eventually};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::real::{blocking, start_with_proxy};
use crate::support::{TIMEOUT, consumer, serve, until};

fn send(producer: &BaseProducer, key: &IdempotencyKey) {
    let header = Header { key: key::HEADER, value: Some(key.as_bytes()) };
    let record = BaseRecord::to("payments")
        .key("account-7")
        .payload("100")
        .headers(OwnedHeaders::new().insert(header));
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// Stores three records of one event: the producer repeats a message after its acknowledgement was
/// lost, and then the program sends it again.
fn store_three_times(kafka: &KafkaServer, proxy: &Proxy, key: &IdempotencyKey) {
    let reader: BaseConsumer = kafka.consumer_config("reader").create().unwrap();
    let wait_for = |count: i64| {
        let has_count = || {
            let (_, end) = reader.fetch_watermarks("payments", 0, TIMEOUT).unwrap();
            (end == count).then_some(())
        };
        eventually(TIMEOUT, has_count).unwrap_or_else(|| panic!("timed out waiting for {count}"));
    };
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", proxy.addr().to_string())
        // Otherwise the broker would recognize the message that is repeated.
        .set("enable.idempotence", "false")
        .create()
        .unwrap();
    send(&producer, &IdempotencyKey::of_content(["of another event"]));
    producer.flush(TIMEOUT).unwrap();
    proxy.swallow_replies();
    send(&producer, key);
    wait_for(2);
    proxy.heal().unwrap();
    producer.flush(TIMEOUT).unwrap();
    wait_for(3);
    send(&producer, key);
    producer.flush(TIMEOUT).unwrap();
    wait_for(4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_producer_repeats_is_processed_once() {
    let event = IdempotencyKey::of_content(["payment", "7"]);
    let repeated = event.clone();
    let (kafka, _proxy) = blocking(move || {
        let (kafka, proxy) = start_with_proxy();
        kafka.create_topic("payments", 1, &[]).unwrap();
        store_three_times(&kafka, &proxy, &repeated);
        (kafka, proxy)
    })
    .await;
    // A fourth record, from a publisher. It reaches the same partition.
    let payment = Output::to("payments").payload("100").header(key::HEADER, event.clone());
    let mut publisher = Publisher::new(kafka.bootstrap()).unwrap();
    publisher.ready().await.unwrap().call(payment).await.unwrap();

    let (runs, answers) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (run, answered) = (runs.clone(), answers.clone());
    let service = ServiceBuilder::new()
        .map_response(move |outcome: Outcome<()>| {
            answered.lock().unwrap().push(outcome.is_duplicate());
        })
        .layer(DecodeLayer::raw())
        .layer(
            IdempotencyLayer::new(MemoryStore::new(), "payments", key::header(key::HEADER))
                .unwrap(),
        )
        .service_fn(move |request: Request| {
            run.lock().unwrap().extend(request.lock().ok().map(LockHandle::key).cloned());
            async { Ok::<_, BoxError>(()) }
        });
    let serving = serve(consumer(kafka.consumer_config("billing"), "payments"), service);
    until("all records are answered", || answers.lock().unwrap().len() == 5).await;
    serving.stop().await.unwrap();
    assert_eq!(*answers.lock().unwrap(), [false, false, true, true, true]);
    assert_eq!(runs.lock().unwrap().iter().filter(|key| **key == event).count(), 1);
}
