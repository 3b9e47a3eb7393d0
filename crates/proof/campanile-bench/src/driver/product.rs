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

use super::counters::Counters;
use super::latency::Latencies;
use super::measurement::Measurement;
use super::task::{OrderKind, Task};
use super::topic::KEY_HEADER;

const NAMESPACE: &str = "bench";

pub(super) async fn run(task: &Task, order: OrderKind) -> Result<Measurement, BoxError> {
    let store = RedisStore::connect(&*task.redis).await?;
    let counters = Arc::new(Counters::new(task)?);
    let (on_request, on_response, on_call) = (counters.clone(), counters.clone(), counters.clone());
    let service = ServiceBuilder::new()
        .map_request(move |record: Record| {
            on_request.record_received();
            record
        })
        .map_response(move |outcome: Outcome<()>| {
            if outcome.is_duplicate() {
                on_response.record_duplicate();
            }
            on_response.record_finished();
        })
        .layer(DecodeLayer::bytes())
        .layer(IdempotencyLayer::new(store, NAMESPACE, key::header(KEY_HEADER))?)
        .service_fn(move |request: Request<Bytes>| handle(on_call.clone(), request));
    let end = counters.clone();
    Consumer::new(task.consumer_config())?
        .subscribe([&*task.topic])
        .with_order(order.order())
        .serve(service)
        .with_graceful_shutdown(async move { end.wait_until_ended().await })
        .await?;
    counters.measurement()
}

async fn handle(counters: Arc<Counters>, request: Request<Bytes>) -> Result<(), BoxError> {
    let record = request.record();
    let key = record.headers().get_str(KEY_HEADER).ok_or("no idempotency key")?;
    counters.handle(key, record.partition(), record.offset(), Some(request.body())).await
}

/// Processes one record at a time. Measures the time since each record was produced.
pub(super) async fn latency(task: &Task) -> Result<Measurement, BoxError> {
    let store = RedisStore::connect(&*task.redis).await?;
    let stack = ServiceBuilder::new()
        .layer(DecodeLayer::bytes())
        .layer(IdempotencyLayer::new(store, NAMESPACE, key::header(KEY_HEADER))?)
        .service_fn(|request: Request<Bytes>| {
            std::hint::black_box(request.body());
            ready(Ok::<_, BoxError>(()))
        });
    let latencies = Arc::new(Latencies::new(task));
    let timed = latencies.clone();
    let service = service_fn(move |record: Record| {
        let (latencies, produced) = (timed.clone(), record.payload().cloned());
        let ended = stack.clone().oneshot(record);
        ended.map(move |outcome| outcome.and_then(|_| latencies.add(produced.as_deref())))
    });
    let end = latencies.clone();
    Consumer::new(task.consumer_config())?
        .subscribe([&*task.topic])
        .serve(service)
        .with_graceful_shutdown(async move { end.wait_until_complete().await })
        .await?;
    latencies.measurement()
}
