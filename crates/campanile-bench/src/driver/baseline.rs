//! Consumers as a good engineer writes them by hand with rdkafka and redis, each tuned to its best
//! result.
//!
//! Each of them loses its claimed records when it is killed, and has no attempts, no backoff and no
//! dead letters.

pub(super) mod concurrent;
pub(super) mod partitions;
pub(super) mod round_trips;
mod store;

use campanile::BoxError;
use rdkafka::Message;
use rdkafka::message::Headers;

use super::topic::KEY_HEADER;

fn idempotency_key<M: Message>(message: &M) -> Result<&str, BoxError> {
    let header = message
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == KEY_HEADER))
        .and_then(|header| header.value)
        .ok_or("a record without its idempotency key")?;
    Ok(std::str::from_utf8(header)?)
}
