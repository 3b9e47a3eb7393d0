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
use crate::driver::measured::Measured;
use crate::driver::tally::Tally;
use crate::driver::task::Task;

/// The driver's default.
const AT_ONCE: usize = 256;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measured, BoxError> {
    let store = Store::connect(&task.redis).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let tally = Tally::new(task);
    consumer.subscribe(&[&task.topic])?;
    let records = consumer.stream().map_err(BoxError::from);
    let consume = records
        .try_for_each_concurrent(AT_ONCE, |message| process(&tally, &store, &consumer, message));
    match select(pin!(consume), pin!(tally.ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    tally.measured()
}

async fn process(
    tally: &Tally,
    store: &Store,
    consumer: &StreamConsumer,
    message: BorrowedMessage<'_>,
) -> Result<(), BoxError> {
    tally.received();
    let key = idempotency_key(&message)?;
    match store.claim(key).await? {
        Claim::Acquired => {
            tally.handle(key, message.partition(), message.offset())?;
            store.complete(key).await?;
        }
        Claim::Busy | Claim::Completed => tally.skipped(),
    }
    consumer.store_offset_from_message(&message)?;
    tally.finished();
    Ok(())
}
