//! Processes one record at a time with two calls to Redis and nothing else: the minimum latency of
//! a record.

use campanile::BoxError;
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};

use super::idempotency_key;
use super::store::Store;
use crate::driver::latency::Latencies;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, Check::ClaimAndCompletion).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let latencies = Latencies::new(task);
    consumer.subscribe(&[&task.topic])?;
    while !latencies.is_complete() {
        let message = consumer.recv().await?;
        let key = idempotency_key(&message)?;
        if let Some(claim) = store.claim(key).await {
            std::hint::black_box(message.payload());
            store.complete(&claim).await;
        }
        consumer.store_offset_from_message(&message)?;
        latencies.add(message.payload())?;
    }
    latencies.measurement()
}
