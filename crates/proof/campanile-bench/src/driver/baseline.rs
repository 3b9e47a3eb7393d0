//! Consumers as a good engineer writes them by hand with rdkafka and redis, each tuned to its best
//! result.
//!
//! All of them retry a failed handler and a failed call to Redis after a pause, and ignore errors of
//! Kafka that are not fatal. None of them renews a claim while a handler runs, counts attempts,
//! publishes dead letters, or waits for the records in flight before a partition is revoked.

mod backoff;
pub(super) mod concurrent;
pub(super) mod keyed;
mod offsets;
pub(super) mod partitions;
pub(super) mod round_trips;
mod store;
pub(super) mod tutorial;

use std::future::ready;

use campanile::BoxError;
use futures_util::{Stream, StreamExt};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers};

use self::backoff::Backoff;
use self::store::Store;
use super::counters::Counters;
use super::topic::KEY_HEADER;

/// Receives records. librdkafka recovers from an error by itself, unless the error is fatal.
fn records<C: ConsumerContext + 'static>(
    consumer: &StreamConsumer<C>,
) -> impl Stream<Item = Result<BorrowedMessage<'_>, BoxError>> {
    consumer.stream().filter_map(|received| {
        ready(match received {
            Err(error @ KafkaError::MessageConsumption(_)) => {
                eprintln!("by hand: {error}; receiving further records");
                None
            }
            received => Some(received.map_err(BoxError::from)),
        })
    })
}

/// Handles a record, unless its key is known. Retries a failed handler after a pause.
///
/// # Errors
/// Fails if the record has no key, which no further attempt would change.
async fn process(
    store: &Store,
    counters: &Counters,
    message: &impl Message,
) -> Result<(), BoxError> {
    let key = idempotency_key(message)?;
    let mut backoff = Backoff::default();
    while let Some(claim) = store.claim(key).await {
        match store.handle(key, message, handle(counters, key, message)).await {
            Ok(()) => {
                store.complete(&claim).await;
                return Ok(());
            }
            Err(error) => {
                eprintln!("by hand: the handler failed: {error}; retrying");
                store.release(&claim).await;
                backoff.wait().await;
            }
        }
    }
    counters.record_duplicate();
    Ok(())
}

fn handle(
    counters: &Counters,
    key: &str,
    message: &impl Message,
) -> impl Future<Output = Result<(), BoxError>> {
    counters.handle(key, message.partition(), message.offset(), message.payload())
}

/// Stores an offset, which is committed soon. This fails if the partition was revoked meanwhile; its
/// next owner receives the record again.
fn store_offset<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    message: &impl Message,
    offset: i64,
) {
    let (topic, partition) = (message.topic(), message.partition());
    if let Err(error) = consumer.store_offset(topic, partition, offset) {
        eprintln!("by hand: the offset of {topic}/{partition}@{offset} is not stored: {error}");
    }
}

/// Returns the partitions that a rebalance takes from this consumer.
fn revoked(rebalance: &Rebalance<'_>) -> Vec<i32> {
    match rebalance {
        Rebalance::Revoke(partitions) => {
            partitions.elements().iter().map(|partition| partition.partition()).collect()
        }
        Rebalance::Assign(_) | Rebalance::Error(_) => Vec::new(),
    }
}

fn idempotency_key<M: Message>(message: &M) -> Result<&str, BoxError> {
    let header = message
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == KEY_HEADER))
        .and_then(|header| header.value)
        .ok_or("a record without its idempotency key")?;
    Ok(std::str::from_utf8(header)?)
}
