//! The driver with a service that does nothing, and an rdkafka loop that does nothing.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use campanile::{BoxError, Consumer, Record};
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tower::service_fn;

use super::measured::Measured;
use super::tally::Tally;
use super::task::{Ordered, Task};

pub(super) async fn driver(task: &Task, order: Ordered) -> Result<Measured, BoxError> {
    let tally = Arc::new(Tally::new(task));
    let counted = tally.clone();
    let service = service_fn(move |record: Record| {
        counted.received();
        std::hint::black_box(record.payload());
        counted.finished();
        ready(Ok::<_, Infallible>(()))
    });
    let end = tally.clone();
    Consumer::new(task.consumer_config())?
        .subscribe([&*task.topic])
        .with_order(order.order())
        .serve(service)
        .with_graceful_shutdown(async move { end.ended().await })
        .await?;
    tally.measured()
}

/// Never finishes a record. Measures the memory when the time is up.
pub(super) async fn stalled(task: &Task) -> Result<Measured, BoxError> {
    let tally = Arc::new(Tally::new(task));
    let counted = tally.clone();
    let service = service_fn(move |_: Record| {
        counted.received();
        pending::<Result<(), Infallible>>()
    });
    let serving = Consumer::new(task.consumer_config())?.subscribe([&*task.topic]).serve(service);
    tokio::select! {
        ended = serving => return Err(format!("serving has ended: {ended:?}").into()),
        () = tokio::time::sleep(task.limit) => tally.end(),
    }
    tally.measured()
}

pub(super) fn bare(task: &Task) -> Result<Measured, BoxError> {
    let consumer: BaseConsumer = task
        .client_config()
        .set("enable.auto.commit", "false")
        // By default, a full queue pauses fetching of its partition for a second.
        .set("fetch.queue.backoff.ms", "5")
        .create()?;
    let tally = Tally::new(task);
    consumer.subscribe(&[&task.topic])?;
    while !tally.has_ended() {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message?;
        tally.received();
        std::hint::black_box(message.payload());
        tally.finished();
    }
    tally.measured()
}
