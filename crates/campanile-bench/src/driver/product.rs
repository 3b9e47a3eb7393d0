//! From Kafka through the guard on Redis to the commit, against what is written by hand.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use campanile::{BoxError, DecodeLayer, IdempotencyLayer, Order, RedisStore, key};
use campanile_test::{KafkaServer, Message, RedisServer};
use tokio::runtime::Runtime;
use tower::ServiceBuilder;

use super::timed::{consumer, timed};
use super::{by_hand, per_second};
use crate::guarded::{guarded, key as key_of, numbered, process};
use crate::report::{Goal, Report, Row};

const ROUNDS: u64 = 3;
pub(super) const TOPIC: &str = "guarded";
pub(super) const PARTITIONS: i32 = 6;
const RECORDS: u64 = 120_000;

/// What is slow is measured over fewer records.
const BY_HAND: u64 = 30_000;
const ONE_BY_ONE: u64 = 5_000;

/// The records of so many accounts are in their order.
const ACCOUNTS: u64 = 1_000;

pub(super) fn run(
    report: &mut Report,
    kafka: &KafkaServer,
    runtime: &Runtime,
) -> Result<(), BoxError> {
    let redis = RedisServer::start()?;
    kafka.create_topic(TOPIC, PARTITIONS, &[])?;
    let payload = vec![b'x'; 100];
    kafka.producer().produce_all((0..RECORDS).map(|number| {
        let partition = i32::try_from(number % PARTITIONS as u64).unwrap_or(0);
        Message::to(TOPIC)
            .partition(partition)
            .key((number % ACCOUNTS).to_string())
            .header("id", numbered(number))
            .payload(payload.clone())
    }))?;
    let (mut product, mut alone) = (vec![], vec![]);
    let (mut lanes, mut tutorials) = (vec![], vec![]);
    // A round that is not counted warms all up.
    for round in 0..=ROUNDS {
        let whole = runtime.block_on(product_once(kafka, &redis, format!("product-{round}")))?;
        redis.cli(&["FLUSHALL"])?;
        let layer = layer_once(runtime, &redis)?;
        redis.cli(&["FLUSHALL"])?;
        let group = format!("by-hand-{round}");
        let by_hand =
            runtime.block_on(by_hand::a_task_per_partition(kafka, &redis, &group, BY_HAND))?;
        redis.cli(&["FLUSHALL"])?;
        let group = format!("tutorial-{round}");
        let tutorial = runtime.block_on(by_hand::tutorial(kafka, &redis, &group, ONE_BY_ONE))?;
        redis.cli(&["FLUSHALL"])?;
        if round > 0 {
            product.push(per_second(RECORDS, whole));
            alone.push(per_second(RECORDS, layer));
            lanes.push(per_second(BY_HAND, by_hand));
            tutorials.push(per_second(ONE_BY_ONE, tutorial));
        }
    }
    for (against, values, goal) in [
        ("one at a time, a checkout for each call", tutorials, 30.0),
        ("a task per partition, one connection", lanes, 5.0),
        ("layer + RedisStore without Kafka", alone, 0.8),
    ] {
        report.add(Row {
            area: "driver",
            name: "guarded on Redis, 6 partitions, by key",
            unit: "records/s",
            values: product.clone(),
            against: Some((against, values)),
            goal: Some(Goal::AtLeast(goal)),
        });
    }
    Ok(())
}

async fn product_once(
    kafka: &KafkaServer,
    redis: &RedisServer,
    group: String,
) -> Result<Duration, BoxError> {
    let store = RedisStore::connect(redis.url()).await?;
    let layer = IdempotencyLayer::new(store, "bench", key::header("id"))?;
    let consumer = consumer(kafka, group, TOPIC, Order::by_key())?;
    timed(consumer, RECORDS, |count| {
        ServiceBuilder::new().layer(DecodeLayer::bytes()).layer(layer).service_fn(move |request| {
            std::hint::black_box(&request);
            count.one();
            ready(Ok::<_, Infallible>(()))
        })
    })
    .await
}

/// The same number of messages under the same layer, 256 at once.
fn layer_once(runtime: &Runtime, redis: &RedisServer) -> Result<Duration, BoxError> {
    runtime.block_on(async {
        let store = RedisStore::connect(redis.url()).await?;
        let layer = IdempotencyLayer::new(store, "bench", key_of)?;
        process(guarded(&layer), 0..RECORDS, 256).await
    })
}
