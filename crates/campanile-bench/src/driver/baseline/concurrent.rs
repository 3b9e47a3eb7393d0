//! Processes 256 records concurrently in any order. Stores the offset up to which all records of a
//! partition are finished.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;

use campanile::BoxError;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::BorrowedMessage;

use super::process_once;
use super::store::Store;
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

/// The driver's default.
const IN_FLIGHT: usize = 256;

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, Check::ClaimAndCompletion).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let (counters, offsets) = (Counters::new(task)?, Offsets::default());
    consumer.subscribe(&[&task.topic])?;
    let records = consumer.stream().map_err(BoxError::from).inspect_ok(|message| {
        counters.record_received();
        offsets.begin(message);
    });
    let consume = records.try_for_each_concurrent(IN_FLIGHT, async |message| {
        process_once(&store, &counters, &message).await?;
        if let Some(offset) = offsets.finish(&message) {
            consumer.store_offset(message.topic(), message.partition(), offset)?;
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

/// The unfinished offsets of each partition, and the last one that was received.
#[derive(Default)]
struct Offsets(RefCell<HashMap<i32, (BTreeSet<i64>, i64)>>);

impl Offsets {
    /// Call this in the order of the records.
    fn begin(&self, message: &BorrowedMessage<'_>) {
        let mut partitions = self.0.borrow_mut();
        let (unfinished, last) = partitions.entry(message.partition()).or_default();
        unfinished.insert(message.offset());
        *last = message.offset();
    }

    /// Returns the last offset of the finished records, if this record was the first unfinished one.
    fn finish(&self, message: &BorrowedMessage<'_>) -> Option<i64> {
        let mut partitions = self.0.borrow_mut();
        let (unfinished, last) = partitions.get_mut(&message.partition())?;
        let was_first = unfinished.first() == Some(&message.offset());
        unfinished.remove(&message.offset());
        was_first.then(|| unfinished.first().map_or(*last, |first| first - 1))
    }
}
