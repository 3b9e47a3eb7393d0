//! Letters of a real consumer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_admin::redrive::Redrive;
use campanile_core::{BoxError, DecodeLayer, Record, Request, error, key};
use campanile_idempotency::IdempotencyLayer;
use campanile_kafka::{Consumer, DeadLetter, FloodLimit};
use campanile_test::Message;
use tokio::sync::Notify;
use tower::{ServiceBuilder, service_fn};

use crate::run;
use crate::support::{KAFKA, NAMESPACE, Scene};

const RECORDS: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The runs of each key's handler.
#[derive(Default)]
struct Ledger {
    runs: Mutex<BTreeMap<String, usize>>,
    changed: Notify,
    broken: AtomicBool,
}

impl Ledger {
    fn add(&self, key: &str) {
        *self.runs.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        self.changed.notify_one();
    }

    /// Waits until every key has been run this many times.
    async fn reaches(&self, times: usize) {
        let reached = async {
            loop {
                let done = {
                    let runs = self.runs.lock().unwrap();
                    runs.len() == RECORDS && runs.values().all(|&count| count >= times)
                };
                if done {
                    return;
                }
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(TIMEOUT, reached).await.expect("the records are handled in time");
    }
}

/// Consumes the topic until `done` completes.
async fn consume(scene: &Scene, ledger: &Arc<Ledger>, done: impl Future<Output = ()>) {
    let ledger = ledger.clone();
    let decode =
        |record: &Record| String::from_utf8(record.payload().cloned().unwrap_or_default().to_vec());
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::with(decode))
        .layer(
            IdempotencyLayer::new(
                scene.store.clone(),
                NAMESPACE,
                key::body(|id: &String| id.clone()),
            )
            .unwrap(),
        )
        .service(service_fn(move |request: Request<String>| {
            let ledger = ledger.clone();
            async move {
                ledger.add(request.body());
                if ledger.broken.load(Ordering::SeqCst) {
                    return Err(BoxError::from(error::permanent("the gateway is down")));
                }
                Ok(())
            }
        }));
    let dead = DeadLetter::topic(scene.dead.as_str())
        .with_flood_limit(FloodLimit::new(RECORDS * 10, RECORDS * 10));
    let serve = Consumer::new(KAFKA.consumer_config(&scene.topic))
        .unwrap()
        .subscribe([scene.topic.as_str()])
        .on_give_up(dead)
        .serve(service);
    let handle = serve.handle();
    let serving = tokio::spawn(serve.into_future());
    done.await;
    // The last letters are published after their handlers have ended. The lag of a partition without
    // records is unknown.
    let is_finished =
        || handle.status().partitions.iter().all(|partition| partition.lag.unwrap_or(0) == 0);
    let finished = async {
        while !is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, finished).await.expect("the letters are published in time");
    handle.shutdown();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_handler_processes_each_record_once_and_others_are_parked() {
    let scene = Scene::new("consumed", 2).await;
    let payload = |number| Message::to(&scene.topic).payload(format!("p-{number}"));
    KAFKA.producer().produce_all((0..RECORDS).map(payload)).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_max_redrives(1);
    let ledger = Arc::new(Ledger::default());
    ledger.broken.store(true, Ordering::SeqCst);

    // All fail, are brought back, and fail again: nothing fixed the handler.
    consume(&scene, &ledger, ledger.reaches(1)).await;
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (RECORDS as u64, 0));
    consume(&scene, &ledger, ledger.reaches(2)).await;
    let (summary, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (0, RECORDS as u64), "{:?}", audit.0.first());

    // With a higher limit the same letters are seen again. The former ones were locked since.
    ledger.broken.store(false, Ordering::SeqCst);
    let (summary, _) = run(&scene, &redrive.with_max_redrives(2)).await.unwrap();
    assert_eq!((summary.reopened, summary.skipped), (RECORDS as u64, RECORDS as u64));
    consume(&scene, &ledger, ledger.reaches(3)).await;
    let runs = ledger.runs.lock().unwrap().clone();
    assert!(runs.len() == RECORDS && runs.values().all(|&count| count == 3), "{runs:?}");
}
