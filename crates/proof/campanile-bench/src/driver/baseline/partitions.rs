//! Keeps the order of each partition: one task per partition processes one record at a time and
//! stores each record's offset when it completes.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile::BoxError;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::message::OwnedMessage;
use rdkafka::{ClientContext, Message};
use tokio::sync::mpsc;

use super::store::Store;
use super::{process, records, revoked, store_offset};
use crate::driver::counters::Counters;
use crate::driver::measurement::Measurement;
use crate::driver::task::{Check, Task};

/// librdkafka delivers long runs of records of one partition. A short queue would fill up and block
/// the other partitions.
const QUEUE_CAPACITY: usize = 16_384;

struct Context {
    counters: Counters,
    store: Store,
    consumer: StreamConsumer<Queues>,
}

pub(in crate::driver) async fn run(task: &Task, check: Check) -> Result<Measurement, BoxError> {
    let store = Store::connect(&task.redis, check).await?;
    let consumer = task.client_config().create_with_context(Queues::default())?;
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
    let queues = context.consumer.context();
    let mut records = pin!(records(&context.consumer));
    while let Some(message) = records.try_next().await? {
        context.counters.record_received();
        let queue = queues.queue(message.partition(), context);
        queue.send(message.detach()).await?;
    }
    Ok(())
}

/// The queues of the assigned partitions.
#[derive(Default)]
struct Queues(Mutex<HashMap<i32, Queue>>);

type Queue = mpsc::Sender<OwnedMessage>;

impl ClientContext for Queues {}

impl ConsumerContext for Queues {
    /// Drops the queues of revoked partitions, which ends their tasks.
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut queues = self.lock();
        for partition in revoked(rebalance) {
            queues.remove(&partition);
        }
    }
}

impl Queues {
    /// Returns the queue of a partition. Starts its task first if it has none.
    fn queue(&self, partition: i32, context: &Arc<Context>) -> Queue {
        let start = || {
            let (queue, records) = mpsc::channel(QUEUE_CAPACITY);
            let worker = process_partition(context.clone(), records);
            tokio::spawn(async {
                if let Err(error) = worker.await {
                    // The queue is now closed, which ends the receive loop.
                    eprintln!("by hand: {error}");
                }
            });
            queue
        };
        self.lock().entry(partition).or_insert_with(start).clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn process_partition(
    context: Arc<Context>,
    mut records: mpsc::Receiver<OwnedMessage>,
) -> Result<(), BoxError> {
    while let Some(message) = records.recv().await {
        if records.is_closed() {
            // The partition was revoked. Its next owner receives the record again.
            break;
        }
        process(&context.store, &context.counters, &message).await?;
        store_offset(&context.consumer, &message, message.offset());
        context.counters.record_finished();
    }
    Ok(())
}
