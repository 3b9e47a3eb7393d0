//! Errors for configurations and services that cannot be served.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, ConsumerConfig, ConsumerError, DeadLetter};
use campanile_test::free_port;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tower::{Service, service_fn};

use crate::support::{committed, consumer, mock, serve};

async fn ignore(_: Record) -> Result<(), BoxError> {
    Ok(())
}

#[tokio::test]
async fn consumer_without_a_topic_is_refused() {
    let consumer = Consumer::new(ConsumerConfig::new("127.0.0.1:1", "g")).unwrap();
    let error = serve(consumer, service_fn(ignore)).ended().await.unwrap_err();
    assert!(matches!(error, ConsumerError::Config(_)), "{error:?}");
    assert!(error.source().unwrap().to_string().contains("subscribe"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topic_is_named() {
    let kafka = mock("orders", 1, 1);
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    kafka.cluster().topic_error("order", unknown).unwrap();
    let error = serve(consumer(kafka.consumer_config("g"), "order"), service_fn(ignore))
        .ended()
        .await
        .unwrap_err();
    assert!(matches!(error, ConsumerError::Kafka { .. }), "{error:?}");
    assert!(error.to_string().contains("topic `order` does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_missing_topics_are_named_together() {
    let kafka = mock("orders", 1, 1);
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    let consumer = consumer(kafka.consumer_config("g"), "orders").subscribe(["order", "payment"]);
    for topic in ["order", "payment", "parked"] {
        kafka.cluster().topic_error(topic, unknown).unwrap();
    }
    let consumer = consumer.on_give_up(DeadLetter::topic("parked"));
    let error = serve(consumer, service_fn(ignore)).ended().await.unwrap_err().to_string();
    for topic in ["topic `order` does not", "topic `payment` does not", "topic `parked` does not"] {
        assert!(error.contains(topic), "{error}");
    }
    assert!(!error.contains("`orders`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_brokers_are_named() {
    let brokers = format!("127.0.0.1:{}", free_port().unwrap());
    let consumer = Consumer::new(ConsumerConfig::new(&brokers, "g"))
        .unwrap()
        .subscribe(["orders"])
        .with_start_timeout(Duration::from_millis(1500));
    let start = tokio::time::Instant::now();
    let error = serve(consumer, service_fn(ignore)).ended().await.unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(1500));
    assert!(error.to_string().contains(&brokers), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_the_wait_for_brokers() {
    let brokers = format!("127.0.0.1:{}", free_port().unwrap());
    let config = ConsumerConfig::new(brokers, "g");
    let consumer = Consumer::new(config).unwrap().subscribe(["orders"]);
    let start = tokio::time::Instant::now();
    serve(consumer, service_fn(ignore)).stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn librdkafka_refusal_is_reported_verbatim() {
    let config = ConsumerConfig::new("127.0.0.1:1", "g").set("fetch.max.bytes", "1000");
    let consumer = Consumer::new(config).unwrap().subscribe(["orders"]);
    let error = serve(consumer, service_fn(ignore)).ended().await.unwrap_err();
    assert!(error.to_string().contains("fetch.max.bytes"), "{error}");
}

/// A service that is ready a limited number of times.
#[derive(Clone)]
struct LimitedReady {
    remaining: Arc<AtomicUsize>,
    panics: bool,
    calls: Arc<AtomicUsize>,
}

impl Service<Record> for LimitedReady {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let less = |remaining: usize| remaining.checked_sub(1);
        match self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Poll::Ready(Ok(())),
            Err(_) if self.panics => panic!("injected panic"),
            Err(_) => Poll::Ready(Err("the pool is closed".into())),
        }
    }

    fn call(&mut self, _: Record) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_service_ends_serving_after_committing() {
    for (panics, text) in [(false, "the pool is closed"), (true, "injected panic")] {
        let kafka = mock("orders", 1, 10);
        let config = kafka.consumer_config("g");
        let calls = Arc::new(AtomicUsize::new(0));
        let service = LimitedReady { remaining: Arc::new(3.into()), panics, calls: calls.clone() };
        let error = serve(consumer(config.clone(), "orders"), service).ended().await.unwrap_err();
        let ConsumerError::Service(source) = error else { panic!("{error:?}") };
        assert!(source.to_string().contains(text), "{source}");
        assert_eq!(calls.load(Ordering::SeqCst), 3);
        assert_eq!(committed(&config, "orders", 1), [Some(3)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_authorization_failure_is_reported() {
    let kafka = mock("orders", 1, 1);
    let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    kafka.cluster().request_errors(RDKafkaApiKey::JoinGroup, &[forbidden; 100]);
    let error = serve(consumer(kafka.consumer_config("g"), "orders"), service_fn(ignore))
        .ended()
        .await
        .unwrap_err();
    assert!(matches!(error, ConsumerError::Kafka { .. }), "{error:?}");
    assert!(error.to_string().contains("authorization"), "{error}");
}
