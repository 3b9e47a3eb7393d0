//! A consumer in this process, and its payments.

use std::time::Duration;

use campanile::prelude::*;
use campanile::{ConsumerError, Summary};
use campanile_test::Message;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceBuilder;

use crate::ledger::Ledger;

/// Time limit for the consumer's shutdown.
const END: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) enum Work {
    /// Takes a few milliseconds.
    Usual,
    /// Finishes at the signal of the test.
    UntilTold,
    /// Never finishes if it starts before the signal.
    BeyondItsLock,
}

#[derive(serde::Deserialize, serde::Serialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) work: Work,
}

impl Payment {
    pub(crate) fn usual(number: usize) -> Self {
        Self { id: format!("p-{number}"), work: Work::Usual }
    }

    pub(crate) fn message(&self, topic: &str, partition: i32) -> Message {
        let payload = serde_json::to_vec(self).unwrap();
        Message::to(topic).partition(partition).payload(payload)
    }
}

/// A consumer while it serves.
pub(crate) struct Serving {
    runtime: Runtime,
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: oneshot::Sender<()>,
}

impl Serving {
    pub(crate) fn start(
        consumer: Consumer,
        namespace: &str,
        lock_ttl: Duration,
        store: impl Future<Output = RedisStore>,
        ledger: &Ledger,
        told: &watch::Receiver<bool>,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(store);
        let (ledger, told) = (ledger.clone(), told.clone());
        let idempotency =
            IdempotencyLayer::new(store, namespace, key::field(|p: &Payment| &p.id)).unwrap();
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::json())
            // A lock per payment.
            .layer(idempotency.with_lock_ttl(lock_ttl).unwrap())
            .service_fn(move |request| charge(request, ledger.clone(), told.clone()));
        let (stop, asked) = oneshot::channel();
        let serve = consumer.serve(service).with_graceful_shutdown(async move {
            asked.await.expect("the test stops the consumer");
        });
        let task = runtime.spawn(serve.into_future());
        Self { runtime, task, stop }
    }

    /// Shuts the consumer down gracefully.
    pub(crate) fn stop(self) -> Summary {
        self.stop.send(()).expect("the consumer is serving");
        let ended = async { tokio::time::timeout(END, self.task).await };
        self.runtime.block_on(ended).expect("the consumer shuts down in time").unwrap().unwrap()
    }
}

async fn charge(
    request: Request<Payment>,
    ledger: Ledger,
    mut told: watch::Receiver<bool>,
) -> Result<(), BoxError> {
    let run = ledger.begin(&request.body().id, request.lock().ok_or("the request has no lock")?);
    match request.body().work {
        Work::Usual => tokio::time::sleep(Duration::from_millis(2)).await,
        Work::UntilTold => drop(told.wait_for(|told| *told).await?),
        Work::BeyondItsLock if *told.borrow() => {}
        Work::BeyondItsLock => std::future::pending().await,
    }
    run.end();
    Ok(())
}
