//! Where copies wait, and for how long.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, IntoKey, Record, Request, error, key};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyError, IdempotencyLayer, MemoryStore, StoreError,
};
use campanile_kafka::RetryTopics;
use campanile_test::{Message, MockKafka};
use rdkafka::Timestamp;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::time::Instant;
use tower::{ServiceBuilder, service_fn};

use super::{
    AFTER, Calls, HOUR, LATER, SOON, busy, expected_calls, failing, kafka, retry_topics, retrying,
};
use crate::support::{TIMEOUT, committed, consumer, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_behind_a_deferred_one_are_committed() {
    let kafka = kafka(&["0", "1000", "0", "0"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let topics = RetryTopics::new().then(SOON, HOUR);
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving = serve(consumer, failing(&calls, busy));
    until_committed(&config, "orders", &[4]).await;
    assert_eq!(
        calls.topics_and_offsets(),
        expected_calls(&[("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3)])
    );
    // A shutdown does not wait for the copy.
    let start = Instant::now();
    let summary = serving.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!((summary.processed, summary.deferred, summary.retried), (3, 1, 1));
    assert_eq!(committed(&config, SOON, 1), [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_in_a_topic_without_commits_survives_a_restart() {
    let kafka = kafka(&["1"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let waiting = |delay| {
        let topics = RetryTopics::new().then(SOON, delay);
        consumer(config.clone(), "orders").with_retry_topics(topics)
    };
    let serving = serve(waiting(HOUR), failing(&calls, busy));
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.deferred, calls.len()), (1, 1));
    assert_eq!(committed(&config, SOON, 1), [None]);
    let serving = serve(waiting(AFTER), failing(&calls, busy));
    until_committed(&config, SOON, &[1]).await;
    serving.stop().await.unwrap();
    assert_eq!(calls.topics_and_offsets(), expected_calls(&[("orders", 0), (SOON, 0)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_is_processed_after_its_delay() {
    let kafka = kafka(&["1", "1", "1"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let serving = serve(retrying(config.clone()), failing(&calls, busy));
    until_committed(&config, SOON, &[3]).await;
    serving.stop().await.unwrap();
    let all = calls.all();
    for offset in 0..3 {
        let of: Vec<_> =
            all.iter().filter(|(record, _)| record.origin().offset == offset).collect();
        let [(_, failed), (copy, again)] = of[..] else { panic!("{of:?}") };
        assert_eq!((copy.topic(), copy.offset()), (SOON, offset), "out of order");
        // A timestamp has a resolution of a millisecond.
        let waited = again.duration_since(*failed);
        assert!(waited >= AFTER - Duration::from_millis(1), "{waited:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clock_delays_all_copies_once() {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    // To a clock that is an hour behind, a copy published now is an hour ahead.
    let ahead = Timestamp::now().to_millis().unwrap() + HOUR.as_millis() as i64;
    let producer: BaseProducer = config.create().unwrap();
    for _ in 0..5 {
        let copy = BaseRecord::<str, str>::to(SOON).partition(0).payload("0").timestamp(ahead);
        producer.send(copy).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    let delay = Duration::from_secs(5);
    let calls = Calls::default();
    let topics = RetryTopics::new().then(SOON, delay);
    let start = Instant::now();
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving = serve(consumer, failing(&calls, busy));
    until_committed(&config, SOON, &[5]).await;
    serving.stop().await.unwrap();
    let all = calls.all();
    assert!(all[0].1 - start >= delay, "{:?}", all[0].1 - start);
    assert!(all[4].1 - all[0].1 < delay, "{:?}", all[4].1 - all[0].1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failure_advances_one_topic_up_to_the_last() {
    let kafka = kafka(&["4"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let serving = serve(retrying(config.clone()), failing(&calls, busy));
    until_committed(&config, LATER, &[3]).await;
    let summary = serving.stop().await.unwrap();
    let each = [("orders", 0), (SOON, 0), (LATER, 0), (LATER, 0), (LATER, 0)];
    assert_eq!(calls.topics_and_offsets(), expected_calls(&each));
    assert_eq!((summary.received, summary.deferred, summary.processed), (5, 4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_chooses_a_later_topic_and_never_goes_back() {
    let kafka = kafka(&["2"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    // The first delay exceeds that of the first topic; the second one is shorter.
    let times = std::sync::Arc::new(Mutex::new(vec![Duration::from_millis(1), AFTER * 2]));
    let error = move || error::retry_after("busy", times.lock().unwrap().pop().unwrap()).into();
    let serving = serve(retrying(config.clone()), failing(&calls, error));
    until_committed(&config, LATER, &[2]).await;
    serving.stop().await.unwrap();
    assert_eq!(
        calls.topics_and_offsets(),
        expected_calls(&[("orders", 0), (LATER, 0), (LATER, 0)])
    );
    assert_eq!(committed(&config, SOON, 1), [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_backoff_never_moves_a_copy_back() {
    let kafka = kafka(&["0", "0"]);
    let config = kafka.consumer_config("g");
    // With full jitter, the default, the delay can be any part of the backoff.
    let short = Backoff::new(Duration::from_millis(1), Duration::from_millis(50)).unwrap();
    let layer = IdempotencyLayer::new(
        MemoryStore::new(),
        IdempotencyConfig::new("orders").with_backoff(short),
        key::coordinates(),
    )
    .unwrap();
    let calls = Calls::default();
    let seen = calls.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |r: Request| {
            let failed = seen.push(r.record()) <= 4;
            async move { if failed { Err(busy()) } else { Ok(()) } }
        },
    );
    let serving = serve(retrying(config.clone()), service);
    until_committed(&config, LATER, &[6]).await;
    serving.stop().await.unwrap();
    for offset in 0..2 {
        let topics = calls.topics_and_offsets().into_iter().filter(|(_, of)| *of == offset);
        let topics: Vec<String> = topics.map(|(topic, _)| topic).collect();
        assert_eq!(topics, ["orders", SOON, LATER, LATER, LATER]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_record_waits_in_the_retry_topic() {
    let kafka = kafka(&["1", "0"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let panics = failing(&calls, || panic!("injected panic"));
    let serving = serve(retrying(config.clone()), panics);
    until_committed(&config, SOON, &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.deferred, summary.processed), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_key_and_store_outage_make_no_copy() {
    let kafka = kafka(&["0"]);
    let config = kafka.consumer_config("g");
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let service = service_fn(move |_: Record| {
        let key = || "k".into_key().unwrap().unwrap();
        let retry_after = Duration::from_millis(10);
        let error = match called.fetch_add(1, Ordering::SeqCst) {
            0 => Some(IdempotencyError::Locked { key: key(), retry_after, settled: None }),
            1 => Some(IdempotencyError::BackingOff { key: key(), retry_after, attempts: 3 }),
            2 => Some(IdempotencyError::Store(StoreError::unavailable("refused"))),
            _ => None,
        };
        async move { error.map_or(Ok(()), |error| Err(BoxError::from(error))) }
    });
    let serving = serve(retrying(config.clone()), service);
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.deferred, summary.retried, summary.inconclusive), (0, 0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_refused_by_its_topic_is_retried_in_place() {
    let kafka = kafka(&["2", "0"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    // The first copy is refused, the second one is not.
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    kafka.cluster().request_errors(RDKafkaApiKey::Produce, &[refused]);
    let now = || BoxError::from(error::retry_after("busy", Duration::from_millis(1)));
    let serving = serve(retrying(config.clone()), failing(&calls, now));
    until_committed(&config, "orders", &[2]).await;
    until_committed(&config, SOON, &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(calls.topics_and_offsets()[..2], expected_calls(&[("orders", 0), ("orders", 0)]));
    assert_eq!((summary.retried, summary.deferred, summary.processed), (2, 1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_retry_topic_commits_nothing_without_a_copy() {
    let kafka = kafka(&["0", "1000", "0"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 10_000];
    kafka.cluster().request_errors(RDKafkaApiKey::Produce, &errors);
    let now = || BoxError::from(error::retry_after("busy", Duration::from_millis(1)));
    let topics = retry_topics().with_timeout(Duration::from_secs(1));
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving = serve(consumer, failing(&calls, now));
    until("the record is retried twice in its partition", || calls.len() >= 4).await;
    assert_eq!(
        calls.topics_and_offsets()[1..4],
        expected_calls(&[("orders", 1), ("orders", 1), ("orders", 1)])
    );
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    kafka.cluster().clear_request_errors(RDKafkaApiKey::Produce);
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert!(summary.deferred >= 1 && summary.processed == 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiting_copies_do_not_block_other_records() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    kafka.create_topic(SOON, 4).unwrap();
    let produce = |payload: &'static str| {
        let message = |n: i64| Message::to("orders").partition(0).key(n.to_string());
        kafka.producer().produce_all((0..COPIES).map(|n| message(n).payload(payload))).unwrap();
    };
    const COPIES: i64 = 600;
    const BUDGET: u64 = 400;
    produce("1000");
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let topics = RetryTopics::new().then(SOON, HOUR);
    let consumer = consumer(config.clone(), "orders")
        .with_retry_topics(topics)
        .with_budget(BUDGET as usize, 1 << 20);
    let serving = serve(consumer, failing(&calls, busy));
    until_committed(&config, "orders", &[COPIES]).await;
    produce("0");
    until_committed(&config, "orders", &[COPIES * 2]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.deferred, summary.processed), (COPIES as u64, COPIES as u64));
    // A quarter of the budget, and the records read before the partitions were paused.
    assert!(summary.unfinished <= BUDGET / 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_during_a_drain_makes_no_copy() {
    let kafka = kafka(&["1"]);
    let config = kafka.consumer_config("g");
    let (calls, go) = (Calls::default(), Arc::new(AtomicBool::new(false)));
    let (seen, may) = (calls.clone(), go.clone());
    let service = service_fn(move |record: Record| {
        let fails = seen.push(&record) == 1;
        let may = may.clone();
        async move {
            until("the test lets the handler finish", || may.load(Ordering::SeqCst)).await;
            if fails { Err(busy()) } else { Ok(()) }
        }
    });
    let mut serving = serve(retrying(config.clone()), service.clone());
    until("the handler is called", || calls.len() == 1).await;
    serving.begin_shutdown().await;
    go.store(true, Ordering::SeqCst);
    let summary = serving.ended().await.unwrap();
    assert_eq!((summary.received, summary.deferred, summary.unfinished), (1, 0, 1));
    assert_eq!(committed(&config, "orders", 1), [None]);
    let serving = serve(retrying(config.clone()), service);
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_publication_time_counts_toward_the_wait() {
    let kafka = kafka(&["0"]);
    let config = kafka.consumer_config("g");
    let calls = Calls::default();
    let after = Duration::from_secs(10);
    let topics = RetryTopics::new().then(SOON, AFTER).with_timeout(Duration::from_secs(10));
    let consumer = consumer(config.clone(), "orders").with_retry_topics(topics);
    let serving =
        serve(consumer, failing(&calls, move || error::retry_after("busy", after).into()));
    until_committed(&config, "orders", &[1]).await;
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    kafka.cluster().topic_error(SOON, unknown).unwrap();
    kafka.producer().produce(Message::to("orders").partition(0).payload("1")).unwrap();
    until_committed(&config, "orders", &[2]).await;
    serving.stop().await.unwrap();
    let all = calls.all();
    let waited = all[2].1 - all[1].1;
    // The publication alone took five seconds.
    assert!(waited >= after && waited < after + Duration::from_secs(4), "{waited:?}");
}
