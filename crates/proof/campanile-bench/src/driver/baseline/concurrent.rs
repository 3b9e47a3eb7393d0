//! Processes 256 records concurrently in any order. Stores the offset up to which all records of a
//! partition are finished.

use std::pin::pin;

use campanile::BoxError;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};

use super::offsets::Offsets;
use super::store::Store;
use super::{process, records, store_offset};
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

/// The driver's default.
const IN_FLIGHT: usize = 256;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, Check::ClaimAndCompletion).await?;
    let consumer: StreamConsumer<Offsets> =
        task.client_config().create_with_context(Offsets::default())?;
    let (counters, offsets) = (Counters::new(task)?, consumer.context());
    consumer.subscribe(&[&task.topic])?;
    let records = records(&consumer).inspect_ok(|message| {
        counters.record_received();
        offsets.begin(message.partition(), message.offset());
    });
    let consume = records.try_for_each_concurrent(IN_FLIGHT, async |message| {
        process(&store, &counters, &message).await?;
        if let Some(offset) = offsets.finish(message.partition(), message.offset()) {
            store_offset(&consumer, &message, offset);
        }
        counters.record_finished();
        Ok(())
    });
    match select(pin!(consume), pin!(counters.wait_until_ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    counters.measurement()
}
