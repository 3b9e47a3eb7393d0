//! The loop of tutorials, without a check for duplicates: receives a record, handles it, and commits
//! it.

use campanile::BoxError;
use rdkafka::Message;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};

use super::idempotency_key;
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::Task;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let consumer: StreamConsumer =
        task.client_config().set("enable.auto.commit", "false").create()?;
    let counters = Counters::new(task)?;
    consumer.subscribe(&[&task.topic])?;
    while !counters.has_ended() {
        let message = consumer.recv().await?;
        counters.record_received();
        let key = idempotency_key(&message)?;
        counters.handle(key, message.partition(), message.offset(), message.payload()).await?;
        consumer.commit_message(&message, CommitMode::Async)?;
        counters.record_finished();
    }
    counters.measurement()
}
