//! Several topics in one consumer, each with its own service.

use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::{BoxError, Coordinates, DecodeLayer, Record, Request, error};
use campanile_kafka::{
    Consumer, ConsumerError, DeadLetter, NoRoute, OnGiveUp, RetryTopics, Routes,
};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use tokio::sync::{Semaphore, mpsc};
use tower::{Service, ServiceBuilder, service_fn};

use crate::dead_letter::{header, letters_in};
use crate::support::{Log, committed, fill, start, until, until_committed};

/// Starts a cluster with a partition per topic and this many records in each.
fn topics(topics: &[(&str, usize)]) -> (MockKafka, ClientConfig) {
    let kafka = MockKafka::start(1).unwrap();
    for (topic, records) in topics {
        kafka.create_topic(topic, 1).unwrap();
        fill(&kafka, topic, 1, *records);
    }
    let config = kafka.consumer_config("g");
    (kafka, config)
}

fn consumer(config: &ClientConfig) -> Consumer {
    Consumer::new(config.clone()).unwrap()
}

/// A service that logs each record.
fn logging(
    log: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let log = log.clone();
    service_fn(move |record: Record| {
        log.push(&record);
        async { Ok(()) }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_topic_goes_to_its_service_with_its_body_type() {
    let (kafka, config) = topics(&[("counts", 0), ("names", 0)]);
    let produce = |topic, payload| {
        let message = Message::to(topic).partition(0).payload(payload);
        kafka.producer().produce(message).unwrap();
    };
    produce("counts", "7");
    produce("names", "\"seven\"");
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let other = sender.clone();
    let counts = ServiceBuilder::new().layer(DecodeLayer::json()).service_fn(
        move |request: Request<u64>| {
            let _ = sender.send(format!("{:?}", request.body()));
            async { Ok::<_, BoxError>(()) }
        },
    );
    let names = ServiceBuilder::new().layer(DecodeLayer::json()).service_fn(
        move |request: Request<String>| {
            let _ = other.send(format!("{:?}", request.body()));
            async { Ok::<_, BoxError>(()) }
        },
    );
    let routes = Routes::new().route("counts", counts).route("names", names);
    let serving = start(consumer(&config).serve_routes(routes));
    until_committed(&config, "counts", &[1]).await;
    until_committed(&config, "names", &[1]).await;
    serving.stop().await.unwrap();
    let mut all = [receiver.recv().await.unwrap(), receiver.recv().await.unwrap()];
    all.sort_unstable();
    assert_eq!(all, ["\"seven\"", "7"]);
    assert_eq!(receiver.recv().await, None, "each record came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_that_is_named_twice_is_consumed_once() {
    let (_kafka, config) = topics(&[("orders", 3)]);
    let log = Log::default();
    let subscribed = consumer(&config).subscribe(["orders", "orders"]);
    let serving = start(subscribed.serve_routes(Routes::new().route("orders", logging(&log))));
    until_committed(&config, "orders", &[3]).await;
    assert_eq!(serving.stop().await.unwrap().processed, 3);
    assert_eq!(log.of(0), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unready_service_blocks_only_its_topic() {
    let (kafka, config) = topics(&[("fast", 0)]);
    kafka.create_topic("slow", 8).unwrap();
    fill(&kafka, "slow", 8, 10);
    fill(&kafka, "fast", 1, 100);
    let (slow, fast, gate) = (Log::default(), Log::default(), Arc::new(Semaphore::new(0)));
    let (seen, held) = (slow.clone(), gate.clone());
    let stalls = ServiceBuilder::new().concurrency_limit(2).service_fn(move |record: Record| {
        seen.push(&record);
        let held = held.clone();
        async move {
            held.acquire().await?.forget();
            Ok::<_, BoxError>(())
        }
    });
    let routes = Routes::new().route("slow", stalls).route("fast", logging(&fast));
    let serving = start(consumer(&config).serve_routes(routes));
    until("the limit is reached", || slow.len() == 2).await;
    until_committed(&config, "fast", &[100]).await;
    assert_eq!(slow.len(), 2);
    gate.add_permits(80);
    until_committed(&config, "slow", &[10; 8]).await;
    serving.stop().await.unwrap();
    for partition in 0..8 {
        assert_eq!(slow.of(partition), (0..10).collect::<Vec<_>>());
    }
    assert_eq!(fast.of(0), (0..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_is_polled_ready_only_for_its_own_record() {
    let (kafka, config) = topics(&[("idle", 0), ("busy", 50)]);
    let (idle, busy) = (Log::default(), Log::default());
    // The two services share one permit. If the permit were held for a topic without records,
    // processing would stop.
    let permit = ServiceBuilder::new().layer(tower::limit::GlobalConcurrencyLimitLayer::new(1));
    let routes = Routes::new()
        .route("idle", permit.clone().service(logging(&idle)))
        .route("busy", permit.service(logging(&busy)));
    let serving = start(consumer(&config).serve_routes(routes));
    until_committed(&config, "busy", &[50]).await;
    fill(&kafka, "idle", 1, 3);
    until_committed(&config, "idle", &[3]).await;
    serving.stop().await.unwrap();
    assert_eq!((idle.len(), busy.len()), (3, 50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_without_a_route_is_given_up_with_its_topic() {
    let (kafka, config) = topics(&[("orders.eu", 3), ("orders.us", 2), ("dead", 0)]);
    let subscribed = |config: &ClientConfig| consumer(config).subscribe(["^orders\\..*"]);
    let routes = || Routes::new().route("orders.eu", logging(&Log::default()));

    // By default, the consumer stops at the record.
    let stopped = start(subscribed(&config).serve_routes(routes())).ended().await;
    let error = stopped.unwrap_err();
    assert_eq!(error::find::<NoRoute>(&error).unwrap().topic(), "orders.us");
    let ConsumerError::Stopped { at, .. } = error else { panic!("{error:?}") };
    assert_eq!(at.to_string(), "orders.us/0@0");
    assert_eq!(committed(&config, "orders.us", 1), [None]);

    let dead_letter = OnGiveUp::from(DeadLetter::topic("dead"));
    for (group, policy, expected) in [("g", OnGiveUp::Skip, (2, 0)), ("h", dead_letter, (0, 2))] {
        let config = kafka.consumer_config(group);
        let serving = start(subscribed(&config).on_give_up(policy).serve_routes(routes()));
        until_committed(&config, "orders.eu", &[3]).await;
        until_committed(&config, "orders.us", &[2]).await;
        let summary = serving.stop().await.unwrap();
        assert_eq!((summary.skipped, summary.dead_lettered), expected, "{group}");
    }
    let letters = letters_in(&config, "dead");
    let origins: Vec<_> = letters.iter().map(|l| header(l, "kafka_dlt-original-topic")).collect();
    assert_eq!(origins, ["orders.us"; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_without_a_route_go_to_the_fallback() {
    let (_kafka, config) = topics(&[("orders.eu", 3), ("orders.us", 2)]);
    let (eu, others) = (Log::default(), Log::default());
    let routes = Routes::new().route("orders.eu", logging(&eu)).fallback(logging(&others));
    let serving = start(consumer(&config).subscribe(["^orders\\..*"]).serve_routes(routes));
    until_committed(&config, "orders.eu", &[3]).await;
    until_committed(&config, "orders.us", &[2]).await;
    serving.stop().await.unwrap();
    assert_eq!((eu.len(), others.len()), (3, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_in_a_retry_topic_takes_the_route_of_its_origin() {
    let (_kafka, config) = topics(&[("orders", 2), ("refunds", 3), ("retry", 0)]);
    let (sender, mut receiver) = mpsc::unbounded_channel();
    // Each service fails original records and accepts copies.
    let once = |name: &'static str| {
        let sender = sender.clone();
        service_fn(move |record: Record| {
            let copy = record.topic() == "retry";
            if copy {
                let _ = sender.send((name, record.origin().clone()));
            }
            async move { if copy { Ok(()) } else { Err(BoxError::from("busy")) } }
        })
    };
    let routes = Routes::new().route("orders", once("orders")).route("refunds", once("refunds"));
    let retry_topics = RetryTopics::new().then("retry", std::time::Duration::from_millis(10));
    let serving = start(consumer(&config).with_retry_topics(retry_topics).serve_routes(routes));
    until_committed(&config, "retry", &[5]).await;
    serving.stop().await.unwrap();
    for _ in 0..5 {
        let (service, Coordinates { topic, .. }) = receiver.recv().await.unwrap();
        assert_eq!(service, &*topic);
    }
}

#[tokio::test]
async fn contradictory_routes_are_refused() {
    let config =
        ClientConfig::new().set("bootstrap.servers", "127.0.0.1:1").set("group.id", "g").clone();
    let log = Log::default();
    let twice = Routes::new().route("orders", logging(&log)).route("orders", logging(&log));
    let pattern = Routes::new().route("^orders", logging(&log));
    let cases =
        [(twice, "`orders` has two routes"), (pattern, "`^orders`"), (Routes::new(), "no topic")];
    for (routes, text) in cases {
        let error = start(consumer(&config).serve_routes(routes)).ended().await.unwrap_err();
        let ConsumerError::Config(error) = error else { panic!("{error:?}") };
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// A service that never becomes ready.
#[derive(Clone)]
struct NeverReady;

impl Service<Record> for NeverReady {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Err("the pool is closed".into()))
    }

    fn call(&mut self, _: Record) -> Self::Future {
        unreachable!("the service is never ready")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_service_ends_serving_and_is_named() {
    let (_kafka, config) = topics(&[("orders", 1)]);
    let routes = Routes::new().route("orders", NeverReady);
    let error = start(consumer(&config).serve_routes(routes)).ended().await.unwrap_err();
    assert!(matches!(error, ConsumerError::Service(_)), "{error:?}");
    let text = format!("{error:?}");
    assert!(text.contains("`orders`") && text.contains("the pool is closed"), "{text}");
}
