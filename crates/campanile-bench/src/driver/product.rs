//! The complete product: the driver, the idempotency layer and the Redis store with default
//! settings.

use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use campanile::{
    BoxError, Consumer, DecodeLayer, IdempotencyLayer, Outcome, Record, RedisStore, Request, key,
};
use futures_util::FutureExt;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use super::latency::Times;
use super::measured::Measured;
use super::tally::Tally;
use super::task::{Ordered, Task};
use super::topic::KEY_HEADER;

const NAMESPACE: &str = "bench";

pub(super) async fn run(task: &Task, order: Ordered) -> Result<Measured, BoxError> {
    let store = RedisStore::connect(&*task.redis).await?;
    let tally = Arc::new(Tally::new(task));
    let (came, went, called) = (tally.clone(), tally.clone(), tally.clone());
    let service = ServiceBuilder::new()
        .map_request(move |record: Record| {
            came.received();
            record
        })
        .map_response(move |outcome: Outcome<()>| {
            if outcome.is_duplicate() {
                went.skipped();
            }
            went.finished();
        })
        .layer(DecodeLayer::bytes())
        .layer(IdempotencyLayer::new(store, NAMESPACE, key::header(KEY_HEADER))?)
        .service_fn(move |request: Request<Bytes>| ready(handle(&called, request.record())));
    let end = tally.clone();
    Consumer::new(task.consumer_config())?
        .subscribe([&*task.topic])
        .with_order(order.order())
        .serve(service)
        .with_graceful_shutdown(async move { end.ended().await })
        .await?;
    tally.measured()
}

fn handle(tally: &Tally, record: &Record) -> Result<(), BoxError> {
    let key = record.headers().last(KEY_HEADER).flatten().ok_or("no idempotency key")?;
    tally.handle(std::str::from_utf8(key)?, record.partition(), record.offset())
}

/// Processes one record at a time. Measures the time since each record was produced.
pub(super) async fn latency(task: &Task) -> Result<Measured, BoxError> {
    let store = RedisStore::connect(&*task.redis).await?;
    let stack = ServiceBuilder::new()
        .layer(DecodeLayer::bytes())
        .layer(IdempotencyLayer::new(store, NAMESPACE, key::header(KEY_HEADER))?)
        .service_fn(|request: Request<Bytes>| {
            std::hint::black_box(request.body());
            ready(Ok::<_, BoxError>(()))
        });
    let times = Arc::new(Times::new(task));
    let timed = times.clone();
    let service = service_fn(move |record: Record| {
        let (times, produced) = (timed.clone(), record.payload().cloned());
        let ended = stack.clone().oneshot(record);
        ended.map(move |outcome| outcome.and_then(|_| times.add(produced.as_deref())))
    });
    let end = times.clone();
    Consumer::new(task.consumer_config().set("auto.offset.reset", "latest"))?
        .subscribe([&*task.topic])
        .serve(service)
        .with_graceful_shutdown(async move { end.enough().await })
        .await?;
    times.measured()
}
