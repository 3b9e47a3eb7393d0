//! The driver with a service that does nothing, and an rdkafka loop that does nothing.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use campanile::{BoxError, Consumer, Record};
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tower::service_fn;

use super::counters::Counters;
use super::measurement::Measurement;
use super::task::{OrderKind, Task};

pub(super) async fn driver(task: &Task, order: OrderKind) -> Result<Measurement, BoxError> {
    let counters = Arc::new(Counters::new(task)?);
    let counted = counters.clone();
    let service = service_fn(move |record: Record| {
        counted.record_received();
        std::hint::black_box(record.payload());
        counted.record_finished();
        ready(Ok::<_, Infallible>(()))
    });
    let end = counters.clone();
    Consumer::new(task.consumer_config())?
        .subscribe([&*task.topic])
        .with_order(order.order())
        .serve(service)
        .with_graceful_shutdown(async move { end.wait_until_ended().await })
        .await?;
    counters.measurement()
}

/// Never finishes a record. Measures the memory when the time is up.
pub(super) async fn stalled(task: &Task) -> Result<Measurement, BoxError> {
    let counters = Arc::new(Counters::new(task)?);
    let counted = counters.clone();
    let service = service_fn(move |_: Record| {
        counted.record_received();
        pending::<Result<(), Infallible>>()
    });
    let serving = Consumer::new(task.consumer_config())?.subscribe([&*task.topic]).serve(service);
    tokio::select! {
        ended = serving => return Err(format!("serving has ended: {ended:?}").into()),
        () = tokio::time::sleep(task.limit) => counters.end(),
    }
    counters.measurement()
}

pub(super) fn bare(task: &Task) -> Result<Measurement, BoxError> {
    let consumer: BaseConsumer = task
        .client_config()
        .set("enable.auto.commit", "false")
        // By default, a full queue pauses fetching of its partition for a second.
        .set("fetch.queue.backoff.ms", "5")
        .create()?;
    let counters = Counters::new(task)?;
    consumer.subscribe(&[&task.topic])?;
    while !counters.has_ended() {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message?;
        counters.record_received();
        std::hint::black_box(message.payload());
        counters.record_finished();
    }
    counters.measurement()
}
