//! The whole stack as users compose it: tower's layers around and inside the idempotency layer, a
//! handwritten inner service, and the consumer driver, on the mock broker and a memory store.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod decode;
mod drop_points;
#[path = "../support/group.rs"]
mod group;
mod keys;
mod layers;
mod service;

use std::time::Duration;

use campanile::prelude::*;
use campanile::{
    Backoff, Consumer, ConsumerError, IdempotencyConfig, LockKeeper, consumer::Summary,
};
use campanile_test::{Message, MockKafka};
use tower::{Service, ServiceBuilder};

#[derive(Clone, serde::Deserialize)]
struct Payment {
    id: String,
}

/// Starts a broker with a topic of two partitions that contains these payloads.
fn start_kafka(payloads: impl IntoIterator<Item = &'static str>) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("payments", 2).unwrap();
    let messages = payloads.into_iter().map(|payload| Message::to("payments").payload(payload));
    kafka.producer().produce_all(messages).unwrap();
    kafka
}

const PAYLOADS_WITH_DUPLICATE: [&str; 4] =
    [r#"{"id":"a"}"#, r#"{"id":"b"}"#, r#"{"id":"a"}"#, r#"{"id":"c"}"#];

type ByField = campanile::key::Key<campanile::key::Field<fn(&Payment) -> &String>>;

fn idempotency_layer() -> IdempotencyLayer<ByField> {
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let id: fn(&Payment) -> &String = |payment| &payment.id;
    let quick = Backoff::new(Duration::from_millis(1), Duration::from_millis(10)).unwrap();
    IdempotencyLayer::new(
        keeper,
        IdempotencyConfig::new("payments").with_backoff(quick),
        key::field(id),
    )
    .unwrap()
}

/// The settings of a consumer. If it is only stalled, it keeps its partitions.
fn consumer_config(kafka: &MockKafka) -> ConsumerConfig {
    ConsumerConfig::from(kafka.consumer_config("stack")).set("session.timeout.ms", "20000")
}

/// Serves until this many answers were `Ok`.
async fn serve<S>(kafka: &MockKafka, answers: u32, service: S) -> Result<Summary, ConsumerError>
where
    S: Service<Record, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let (count, mut counted) = tokio::sync::watch::channel(0);
    let service = ServiceBuilder::new()
        // Counts the answers.
        .map_response(move |_| count.send_modify(|count| *count += 1))
        .service(service);
    let end = async move {
        let _ = counted.wait_for(|count| *count >= answers).await;
    };
    Consumer::new(consumer_config(kafka))
        .unwrap()
        .subscribe(["payments"])
        .serve(service)
        .with_graceful_shutdown(end)
        .await
}
