//! The loop of tutorials, without a check for duplicates: receives a record, handles it, and commits
//! it.

use std::pin::pin;

use campanile::BoxError;
use futures_util::TryStreamExt;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};

use super::backoff::Backoff;
use super::{handle, idempotency_key, records};
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::Task;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let consumer: StreamConsumer =
        task.client_config().set("enable.auto.commit", "false").create()?;
    let counters = Counters::new(task)?;
    consumer.subscribe(&[&task.topic])?;
    let mut records = pin!(records(&consumer));
    while let Some(message) = records.try_next().await? {
        counters.record_received();
        let key = idempotency_key(&message)?;
        let mut backoff = Backoff::default();
        while let Err(error) = handle(&counters, key, &message).await {
            eprintln!("by hand: the handler failed: {error}; retrying");
            backoff.wait().await;
        }
        if let Err(error) = consumer.commit_message(&message, CommitMode::Async) {
            eprintln!("by hand: {error}; a later commit includes this record");
        }
        counters.record_finished();
        if counters.has_ended() {
            break;
        }
    }
    counters.measurement()
}
