//! Processes one record at a time with two calls to Redis and nothing else: the minimum latency of
//! a record.

use campanile::BoxError;
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};

use super::idempotency_key;
use super::store::{Claim, Store};
use crate::driver::latency::Times;
use crate::driver::measured::Measured;
use crate::driver::task::Task;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measured, BoxError> {
    let store = Store::connect(&task.redis).await?;
    let consumer: StreamConsumer =
        task.client_config().set("auto.offset.reset", "latest").create()?;
    let times = Times::new(task);
    consumer.subscribe(&[&task.topic])?;
    while !times.are_enough() {
        let message = consumer.recv().await?;
        let key = idempotency_key(&message)?;
        if store.claim(key).await? == Claim::Acquired {
            std::hint::black_box(message.payload());
            store.complete(key).await?;
        }
        consumer.store_offset_from_message(&message)?;
        times.add(message.payload())?;
    }
    times.measured()
}
