//! Keeps the order of each record key: 256 workers, each with its share of the keys, process one record
//! at a time each. Stores the offset up to which all records of a partition are finished.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;

use campanile::BoxError;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::OwnedMessage;
use tokio::sync::mpsc;

use super::offsets::Offsets;
use super::store::Store;
use super::{process, records, store_offset};
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

/// The driver's default number of records in flight.
const WORKERS: usize = 256;

const QUEUE_CAPACITY: usize = 256;

struct Context {
    counters: Counters,
    store: Store,
    consumer: StreamConsumer<Offsets>,
}

pub(in crate::driver) async fn run(task: &Task) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, Check::ClaimAndCompletion).await?;
    let consumer = task.client_config().create_with_context(Offsets::default())?;
    let context = Arc::new(Context { counters: Counters::new(task)?, store, consumer });
    context.consumer.subscribe(&[&task.topic])?;
    match select(pin!(consume(&context)), pin!(context.counters.wait_until_ended())).await {
        Either::Left((result, _)) => result?,
        Either::Right(((), _)) => {}
    }
    context.counters.measurement()
}

/// Consumes until a fatal error occurs.
async fn consume(context: &Arc<Context>) -> Result<(), BoxError> {
    let workers: Vec<_> = (0..WORKERS).map(|_| start_worker(context)).collect();
    let (hasher, offsets) = (RandomState::new(), context.consumer.context());
    let mut records = pin!(records(&context.consumer));
    while let Some(message) = records.try_next().await? {
        context.counters.record_received();
        offsets.begin(message.partition(), message.offset());
        let worker = hasher.hash_one(message.key().unwrap_or_default()) as usize % WORKERS;
        workers[worker].send(message.detach()).await?;
    }
    Ok(())
}

fn start_worker(context: &Arc<Context>) -> mpsc::Sender<OwnedMessage> {
    let (queue, records) = mpsc::channel(QUEUE_CAPACITY);
    let work = work(context.clone(), records);
    tokio::spawn(async {
        if let Err(error) = work.await {
            // The queue is now closed, which ends the receive loop.
            eprintln!("by hand: {error}");
        }
    });
    queue
}

async fn work(
    context: Arc<Context>,
    mut records: mpsc::Receiver<OwnedMessage>,
) -> Result<(), BoxError> {
    let offsets = context.consumer.context();
    while let Some(message) = records.recv().await {
        process(&context.store, &context.counters, &message).await?;
        if let Some(offset) = offsets.finish(message.partition(), message.offset()) {
            store_offset(&context.consumer, &message, offset);
        }
        context.counters.record_finished();
    }
    Ok(())
}
