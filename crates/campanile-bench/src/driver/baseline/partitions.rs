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

use super::idempotency_key;
use super::store::{Claim, Store};
use crate::driver::measured::Measured;
use crate::driver::tally::Tally;
use crate::driver::task::Task;

/// librdkafka delivers long runs of records of one partition. A short queue would fill up and block
/// the other partitions.
const QUEUE: usize = 16_384;

struct Shared {
    tally: Tally,
    store: Store,
    consumer: StreamConsumer,
}

pub(in crate::driver) async fn run(task: &Task) -> Result<Measured, BoxError> {
    let store = Store::connect(&task.redis).await?;
    let consumer: StreamConsumer = task.client_config().create()?;
    let shared = Arc::new(Shared { tally: Tally::new(task), store, consumer });
    shared.consumer.subscribe(&[&task.topic])?;
    match select(pin!(consume(&shared)), pin!(shared.tally.ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    shared.tally.measured()
}

/// Returns only on errors.
async fn consume(shared: &Arc<Shared>) -> Result<(), BoxError> {
    let mut queues = HashMap::new();
    loop {
        let message = shared.consumer.recv().await?.detach();
        shared.tally.received();
        let queue = queues.entry(message.partition()).or_insert_with(|| {
            let (queue, records) = mpsc::channel(QUEUE);
            let work = work(shared.clone(), records);
            tokio::spawn(async {
                if let Err(error) = work.await {
                    // The queue is now closed, which ends the receive loop.
                    eprintln!("by hand: {error}");
                }
            });
            queue
        });
        queue.send(message).await?;
    }
}

async fn work(
    shared: Arc<Shared>,
    mut records: mpsc::Receiver<OwnedMessage>,
) -> Result<(), BoxError> {
    while let Some(message) = records.recv().await {
        let key = idempotency_key(&message)?;
        match shared.store.claim(key).await? {
            Claim::Acquired => {
                shared.tally.handle(key, message.partition(), message.offset())?;
                shared.store.complete(key).await?;
            }
            Claim::Busy | Claim::Completed => shared.tally.skipped(),
        }
        shared.consumer.store_offset(message.topic(), message.partition(), message.offset())?;
        shared.tally.finished();
    }
    Ok(())
}
