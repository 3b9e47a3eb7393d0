//! A consumer in this process, and its payments.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{Consumer, ConsumerError, IdempotencyConfig, Request, consumer::Summary};
use campanile_test::Message;
use campanile_test::history::HistoryRecorder;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceBuilder;

/// Time limit for the consumer's shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) enum Work {
    /// Takes a few milliseconds.
    Normal,
    /// Finishes at the signal of the test.
    UntilReleased,
    /// Never finishes if it starts before the signal.
    OutlivesLock,
}

#[derive(serde::Deserialize, serde::Serialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) work: Work,
}

impl Payment {
    pub(crate) fn normal(number: usize) -> Self {
        Self { id: format!("p-{number}"), work: Work::Normal }
    }

    /// Returns the message, its idempotency key, and no key of its order.
    pub(crate) fn message(&self, topic: &str, partition: i32) -> (Message, String, Option<String>) {
        let payload = serde_json::to_vec(self).unwrap();
        (Message::to(topic).partition(partition).payload(payload), self.id.clone(), None)
    }
}

/// A consumer while it serves.
pub(crate) struct RunningConsumer {
    runtime: Runtime,
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: oneshot::Sender<()>,
}

impl RunningConsumer {
    pub(crate) fn start(
        consumer: Consumer,
        namespace: &str,
        lock_ttl: Duration,
        store: impl Future<Output = RedisStore>,
        history: &HistoryRecorder,
        released: &watch::Receiver<bool>,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(store);
        let released = released.clone();
        let config = IdempotencyConfig::new(namespace).with_lock_ttl(lock_ttl);
        let idempotency =
            IdempotencyLayer::new(store, config, key::field(|p: &Payment| &p.id)).unwrap();
        let service = ServiceBuilder::new()
            // Records the answers.
            .layer(history.answers())
            .layer(DecodeLayer::json())
            // A lock per payment.
            .layer(idempotency)
            // Records the runs.
            .layer(history.runs())
            .service_fn(move |request| charge(request, released.clone()));
        let (stop, stop_requested) = oneshot::channel();
        let serve = consumer.serve(service).with_graceful_shutdown(async move {
            stop_requested.await.expect("the test stops the consumer");
        });
        let task = runtime.spawn(serve.into_future());
        Self { runtime, task, stop }
    }

    /// Shuts the consumer down gracefully.
    pub(crate) fn stop(self) -> Summary {
        self.stop.send(()).expect("the consumer is serving");
        let shutdown = async { tokio::time::timeout(SHUTDOWN_TIMEOUT, self.task).await };
        self.runtime.block_on(shutdown).expect("the consumer shuts down in time").unwrap().unwrap()
    }
}

async fn charge(
    request: Request<Payment>,
    mut released: watch::Receiver<bool>,
) -> Result<(), BoxError> {
    match request.body().work {
        Work::Normal => tokio::time::sleep(Duration::from_millis(2)).await,
        Work::UntilReleased => drop(released.wait_for(|released| *released).await?),
        Work::OutlivesLock if *released.borrow() => {}
        Work::OutlivesLock => std::future::pending().await,
    }
    Ok(())
}
