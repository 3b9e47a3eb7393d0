//! Consumers as a good engineer writes them by hand with rdkafka and redis, each tuned to its best
//! result.
//!
//! None of them renews a claim while a handler runs, counts attempts, retries with a backoff or
//! publishes dead letters.

pub(super) mod concurrent;
pub(super) mod partitions;
pub(super) mod round_trips;
mod store;
pub(super) mod tutorial;

use campanile::BoxError;
use campanile::record::Coordinates;
use rdkafka::Message;
use rdkafka::message::Headers;

use self::store::Store;
use super::counters::Counters;
use super::topic::KEY_HEADER;

/// Handles a record, unless its key is known.
async fn process_once(
    store: &Store,
    counters: &Counters,
    message: &impl Message,
) -> Result<(), BoxError> {
    let key = idempotency_key(message)?;
    if store.claim(key).await? {
        let (topic, partition, offset) = (message.topic(), message.partition(), message.offset());
        let at = Coordinates { topic: topic.into(), partition, offset };
        let handler = counters.handle(key, partition, offset, message.payload());
        store.handle(key, at, handler).await?;
        store.complete(key).await
    } else {
        counters.record_duplicate();
        Ok(())
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
