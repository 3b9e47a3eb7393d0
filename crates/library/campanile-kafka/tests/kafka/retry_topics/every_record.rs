//! Records fail at random and consumers are dropped at random, and each event succeeds once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Request, key};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore,
};
use campanile_kafka::RetryTopics;
use campanile_test::MockKafka;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tower::ServiceBuilder;

use super::{LATER, SOON};
use crate::support::{TIMEOUT, committed, consumer, fill, serve, until};

const TOPICS: [&str; 3] = ["orders", SOON, LATER];
const PARTITIONS: i32 = 2;
const RECORDS: usize = 100;

/// Computes a number that depends only on its arguments.
fn draw(seed: u64, what: impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (seed, what).hash(&mut hasher);
    hasher.finish()
}

/// Checks whether all records of the topics are committed.
fn is_all_committed(config: &ClientConfig) -> bool {
    let asks: BaseConsumer = config.create().unwrap();
    TOPICS.into_iter().all(|topic| {
        let committed = committed(config, topic, PARTITIONS);
        (0..PARTITIONS).zip(committed).all(|(partition, committed)| {
            let (_, end) = asks.fetch_watermarks(topic, partition, TIMEOUT).unwrap();
            end == committed.unwrap_or(0)
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_succeeds_once_despite_failures_and_drops() {
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let kafka = MockKafka::start(1).unwrap();
    for topic in TOPICS {
        kafka.create_topic(topic, PARTITIONS).unwrap();
    }
    fill(&kafka, "orders", PARTITIONS, RECORDS);
    let config = kafka.consumer_config("g");
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(40)).unwrap();
    let keeper = LockKeeper::new(MemoryStore::new()).unwrap();
    let layer = IdempotencyLayer::new(
        &keeper,
        IdempotencyConfig::new("orders").with_backoff(backoff).with_max_attempts(60),
        key::coordinates(),
    )
    .unwrap();
    let successes = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let counts = successes.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |r: Request| {
            let (lock, counts) = (r.lock().unwrap().clone(), counts.clone());
            async move {
                let key = lock.key().to_string();
                match draw(seed, (&key, lock.attempt())) % 3 {
                    0 => return Err(BoxError::from("busy")),
                    1 => tokio::time::sleep(Duration::from_millis(2)).await,
                    _ => {}
                }
                *counts.lock().unwrap().entry(key).or_default() += 1;
                Ok(())
            }
        },
    );
    let topics = RetryTopics::new()
        .then(SOON, Duration::from_millis(15))
        .then(LATER, Duration::from_millis(40));
    let retrying = || consumer(config.clone(), "orders").with_retry_topics(topics.clone());
    for life in 0..6_u64 {
        let serving = serve(retrying(), service.clone());
        let before = successes.lock().unwrap().len();
        let enough = before + (draw(seed, life) % 30) as usize;
        let goal = enough.min(PARTITIONS as usize * RECORDS);
        until("some records succeed", || successes.lock().unwrap().len() >= goal).await;
        // Some finished records are not committed, as after a crash.
        let failure = RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
        kafka.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &[failure; 2]);
        serving.drop().await;
    }
    let serving = serve(retrying(), service);
    let look = config.clone();
    until("everything is committed", move || {
        tokio::task::block_in_place(|| is_all_committed(&look))
    })
    .await;
    serving.stop().await.unwrap();
    let successes = successes.lock().unwrap();
    assert_eq!(successes.len(), PARTITIONS as usize * RECORDS);
    let twice: Vec<_> = successes.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
