//! Records that are given up and published to a dead-letter topic.

mod age;
mod counters;
mod flood;
mod interrupted;
mod published;
mod refused;
mod released;
mod unpublished;

use std::time::Duration;

use campanile_core::{
    BoxError, Command, DecodeLayer, FencingToken, IdempotencyKey, Namespace, Operation, Owner,
    Record, Reply, Request, Retention, StoreKey, key,
};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, MemoryStore, Store,
};
use campanile_kafka::{Consumer, DeadLetter};
use campanile_test::faults::FaultyStore;
use campanile_test::{Message, MockKafka};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use tower::{Service, ServiceBuilder};

use crate::give_up::Order;
use crate::support::{TIMEOUT, consumer, within};

const DEAD: &str = "orders.dead";

/// Time to live of a lock.
const TTL: Duration = Duration::from_secs(30);

/// Creates a store and a keeper of its locks.
fn store() -> (FaultyStore<MemoryStore>, LockKeeper) {
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    (store, keeper)
}

/// Starts a cluster with these orders in one partition, and a dead-letter topic.
fn kafka(payloads: &[&str]) -> MockKafka {
    let kafka = crate::give_up::kafka(payloads);
    kafka.create_topic(DEAD, 1).unwrap();
    kafka
}

fn produce(kafka: &MockKafka, payloads: &[&str]) {
    let message = |payload: &&str| Message::to("orders").partition(0).payload(*payload);
    kafka.producer().produce_all(payloads.iter().map(message)).unwrap();
}

/// Creates a consumer of `orders` that publishes dead letters.
fn dead_lettering(config: ClientConfig) -> Consumer {
    consumer(config, "orders").on_give_up(DeadLetter::topic(DEAD))
}

/// Creates the same for an outage of the dead-letter topic.
fn with_short_timeout(config: ClientConfig) -> Consumer {
    consumer(config, "orders").on_give_up(short_timeout())
}

/// Publishes dead letters, and soon notices an outage of their topic.
fn short_timeout() -> DeadLetter {
    DeadLetter::topic(DEAD).with_timeout(Duration::from_secs(2))
}

/// Makes every request for this topic fail, or succeed again.
fn set_unknown(kafka: &MockKafka, topic: &str, unknown: bool) {
    let error = match unknown {
        true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        false => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
    };
    kafka.cluster().topic_error(topic, error).unwrap();
}

/// Reads the messages in the only partition of this topic.
pub(crate) fn letters_in(config: &ClientConfig, topic: &str) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = config.create().unwrap();
    let (_, end) = consumer.fetch_watermarks(topic, 0, TIMEOUT).unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let message =
        |_| consumer.poll(TIMEOUT).expect("a letter within the time limit").unwrap().detach();
    (0..end).map(message).collect()
}

fn letters(config: &ClientConfig) -> Vec<OwnedMessage> {
    letters_in(config, DEAD)
}

/// Reads the only header with this name as text.
pub(crate) fn header(letter: &OwnedMessage, name: &str) -> String {
    let bytes = bytes(letter, name).unwrap_or_else(|| panic!("no header {name}"));
    String::from_utf8(bytes).unwrap()
}

/// Finds the value of the only header with this name.
fn bytes(letter: &OwnedMessage, name: &str) -> Option<Vec<u8>> {
    let mut named = letter.headers()?.iter().filter(|header| header.key == name);
    let value = named.next()?.value?.to_vec();
    assert!(named.next().is_none(), "header {name} occurs twice");
    Some(value)
}

fn payloads(letters: &[OwnedMessage]) -> Vec<Option<&str>> {
    letters.iter().map(|l| l.payload().map(|p| std::str::from_utf8(p).unwrap())).collect()
}

/// Simulates processes that acquire a key's lock and die, `times` times.
async fn crash_owners(store: &impl Store, key: &str, times: usize) {
    let namespace = Namespace::try_from("orders").unwrap();
    let key = StoreKey::new(namespace, &IdempotencyKey::new(key.to_owned()).unwrap());
    for owner in 1..=times {
        let operation = Operation::Acquire {
            owner: Owner::new(owner as u64).unwrap(),
            ttl: Duration::from_millis(1),
            max_attempts: 1,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        let command = Command { key: key.clone(), operation, retention: Retention::default() };
        let granted = async {
            loop {
                match store.apply(command.clone()).await.unwrap().reply {
                    Reply::Acquired { .. } | Reply::Exhausted { .. } => break,
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        within("the dead owner's lock expires", granted).await;
    }
    // The last owner's lock expires as well.
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// A service that allows one attempt per order, under a lock with this time to live.
fn single_attempt(
    keeper: &LockKeeper,
    ttl: Duration,
) -> impl Service<Record, Error = BoxError, Future: Send> + Clone + Send + use<> {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    let layer = IdempotencyLayer::new(
        keeper,
        IdempotencyConfig::new("orders")
            .with_max_attempts(1)
            .with_lock_ttl(ttl)
            .with_backoff(backoff),
        key::field(|o: &Order| &o.id),
    )
    .unwrap();
    ServiceBuilder::new().layer(DecodeLayer::json()).layer(layer).service_fn(
        async |request: Request<Order>| match request.body() {
            Order { fails: true, .. } => Err(BoxError::from("gateway is busy")),
            _ => Ok(()),
        },
    )
}
