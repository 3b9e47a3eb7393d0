//! Keeps the order of each partition: one task per partition processes one record at a time and
//! stores each record's offset when it completes.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use campanile::BoxError;
use futures_util::future::{Either, select};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::OwnedMessage;
use tokio::sync::mpsc;

use super::process_once;
use super::store::Store;
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

/// librdkafka delivers long runs of records of one partition. A short queue would fill up and block
/// the other partitions.
const QUEUE_CAPACITY: usize = 16_384;

struct Context {
    counters: Counters,
    store: Store,
    consumer: StreamConsumer,
}

pub(in crate::driver) async fn run(task: &Task, check: Check) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, check).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let context = Arc::new(Context { counters: Counters::new(task)?, store, consumer });
    context.consumer.subscribe(&[&task.topic])?;
    match select(pin!(consume(&context)), pin!(context.counters.wait_until_ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    context.counters.measurement()
}

/// Consumes until an error occurs.
async fn consume(context: &Arc<Context>) -> Result<(), BoxError> {
    let mut queues = HashMap::new();
    loop {
        let message = context.consumer.recv().await?.detach();
        context.counters.record_received();
        let queue = queues.entry(message.partition()).or_insert_with(|| {
            let (queue, records) = mpsc::channel(QUEUE_CAPACITY);
            let worker = process_partition(context.clone(), records);
            tokio::spawn(async {
                if let Err(error) = worker.await {
                    // The queue is now closed, which ends the receive loop.
                    eprintln!("by hand: {error}");
                }
            });
            queue
        });
        queue.send(message).await?;
    }
}

async fn process_partition(
    context: Arc<Context>,
    mut records: mpsc::Receiver<OwnedMessage>,
) -> Result<(), BoxError> {
    while let Some(message) = records.recv().await {
        process_once(&context.store, &context.counters, &message).await?;
        context.consumer.store_offset(message.topic(), message.partition(), message.offset())?;
        context.counters.record_finished();
    }
    Ok(())
}
