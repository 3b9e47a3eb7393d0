//! A topic that is filled, and the consumer that works it off.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile::prelude::*;
use campanile::{ConsumerError, Summary};
use campanile_test::{KafkaServer, Message};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceBuilder;

use crate::ledger::Ledger;

/// How long the consumer may take to end.
const END: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) enum Work {
    /// A few milliseconds.
    Usual,
    /// Ends when the store has stopped.
    UntilTheStop,
    /// Would go on for ever, if it began before the store has stopped.
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

/// Records that keep coming until this is dropped.
pub(crate) struct Load {
    end: mpsc::Sender<()>,
    thread: thread::JoinHandle<usize>,
}

impl Load {
    /// Each time some records, one in ten of which repeats the key of an earlier one.
    pub(crate) fn start(
        kafka: &'static KafkaServer,
        topic: &'static str,
        partitions: i32,
        mut rng: fastrand::Rng,
    ) -> Self {
        const AT_ONCE: usize = 20;
        const PAUSE: Duration = Duration::from_millis(100);
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut keys = 0;
            while ended.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let messages = (0..AT_ONCE).map(|_| {
                    let number = if keys > 0 && rng.u8(..10) == 0 {
                        rng.usize(..keys)
                    } else {
                        keys += 1;
                        keys - 1
                    };
                    // Anywhere: the repeats of a key meet each other across partitions, too.
                    Payment::usual(number).message(topic, rng.i32(0..partitions))
                });
                kafka.producer().produce_all(messages).unwrap();
            }
            keys
        });
        Self { end, thread }
    }

    /// Says how many keys there were.
    pub(crate) fn end(self) -> usize {
        drop(self.end);
        self.thread.join().unwrap()
    }
}

/// A consumer that serves.
pub(crate) struct Serving {
    runtime: Runtime,
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: oneshot::Sender<()>,
}

impl Serving {
    pub(crate) fn start(
        kafka: &KafkaServer,
        topic: &str,
        lock_ttl: Duration,
        store: impl Future<Output = RedisStore>,
        ledger: &Ledger,
        stopped: &watch::Receiver<bool>,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(store);
        let (ledger, stopped) = (ledger.clone(), stopped.clone());
        let idempotency =
            IdempotencyLayer::new(store, "outage", key::field(|p: &Payment| &p.id)).unwrap();
        let service = ServiceBuilder::new()
            .layer(DecodeLayer::json())
            // one lock for each payment
            .layer(idempotency.with_lock_ttl(lock_ttl).unwrap())
            .service_fn(move |request| charge(request, ledger.clone(), stopped.clone()));
        let mut config = kafka.consumer_config(topic);
        // An outage is much longer: a consumer that did not poll meanwhile would lose its partitions.
        config.set("max.poll.interval.ms", "5000");
        let (stop, told) = oneshot::channel();
        let consumer = Consumer::new(config).unwrap().subscribe([topic]);
        let serve = consumer.serve(service).with_graceful_shutdown(async move {
            told.await.expect("the test stops what it has started");
        });
        let task = runtime.spawn(serve.into_future());
        Self { runtime, task, stop }
    }

    /// Stops it gracefully.
    pub(crate) fn stop(self) -> Summary {
        self.stop.send(()).expect("it serves");
        let ended = async { tokio::time::timeout(END, self.task).await };
        self.runtime.block_on(ended).expect("it ends in time").unwrap().unwrap()
    }
}

async fn charge(
    request: Request<Payment>,
    ledger: Ledger,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), BoxError> {
    let run = ledger.begin(&request.body().id, request.lock().ok_or("there is a lock")?);
    match request.body().work {
        Work::Usual => tokio::time::sleep(Duration::from_millis(2)).await,
        Work::UntilTheStop => drop(stopped.wait_for(|stopped| *stopped).await?),
        Work::BeyondItsLock if *stopped.borrow() => {}
        Work::BeyondItsLock => std::future::pending().await,
    }
    run.end();
    Ok(())
}
