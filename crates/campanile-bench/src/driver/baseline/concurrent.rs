//! Processes 256 records concurrently in any order, and stores each record's offset when it
//! completes.

use std::pin::pin;

use campanile::BoxError;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::BorrowedMessage;

use super::idempotency_key;
use super::store::{Claim, Store};
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::Task;

/// The driver's default.
const IN_FLIGHT: usize = 256;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let counters = Counters::new(task);
    consumer.subscribe(&[&task.topic])?;
    let records = consumer.stream().map_err(BoxError::from);
    let consume = records.try_for_each_concurrent(IN_FLIGHT, |message| {
        process(&counters, &store, &consumer, message)
    });
    match select(pin!(consume), pin!(counters.wait_until_ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    counters.measurement()
}

async fn process(
    counters: &Counters,
    store: &Store,
    consumer: &StreamConsumer,
    message: BorrowedMessage<'_>,
) -> Result<(), BoxError> {
    counters.record_received();
    let key = idempotency_key(&message)?;
    match store.claim(key).await? {
        Claim::Acquired => {
            counters.handle(key, message.partition(), message.offset())?;
            store.complete(key).await?;
        }
        Claim::Busy | Claim::Completed => counters.record_duplicate(),
    }
    consumer.store_offset_from_message(&message)?;
    counters.record_finished();
    Ok(())
}
