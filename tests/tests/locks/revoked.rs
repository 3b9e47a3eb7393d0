//! Completions that are recorded after the record's partition was revoked: the next owner answers
//! the record from the entry.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use campanile::consumer::Summary;
use campanile::policy::OnLost;
use campanile::prelude::*;
use campanile::store::State;
use campanile::{Consumer, ConsumerError, Request};
use campanile_test::{KafkaServer, Message, Proxy, RedisServer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceBuilder;

use crate::store::read_entries;
use crate::{group, runner, start_keeper};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

/// One record in each. The second consumer takes over one of them.
const PARTITIONS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a consumer does, and has done.
#[derive(Clone, Default)]
struct Observed {
    /// Whether its handlers block their threads until they may end.
    blocks: bool,
    may_end: Arc<AtomicBool>,
    /// The times that the layer was called, and that the handler was.
    calls: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
    duplicates: Arc<AtomicUsize>,
}

struct Serving {
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: oneshot::Sender<()>,
}

impl Serving {
    async fn start(topic: &str, url: String, observed: &Observed) -> Self {
        let store = RedisStore::connect(url).await.unwrap();
        // A locked key is tried again within a third of this time.
        let config = IdempotencyConfig::new("late").with_lock_ttl(Duration::from_secs(6));
        let layer = IdempotencyLayer::new(store, config, key::header("id"));
        let (handler, counts) = (observed.clone(), observed.clone());
        let calls = observed.calls.clone();
        let service = ServiceBuilder::new()
            .map_request(move |record: Record| {
                calls.fetch_add(1, Ordering::SeqCst);
                record
            })
            .map_response(move |outcome: Outcome<()>| {
                counts.duplicates.fetch_add(usize::from(outcome.is_duplicate()), Ordering::SeqCst);
            })
            .layer(DecodeLayer::raw())
            .layer(layer.unwrap())
            .service_fn(move |_: Request| {
                let handler = handler.clone();
                async move {
                    handler.runs.fetch_add(1, Ordering::SeqCst);
                    while handler.blocks && !handler.may_end.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Ok::<_, BoxError>(())
                }
            });
        let (stop, stopped) = oneshot::channel();
        let serve = Consumer::new(KAFKA.consumer_config(topic))
            .unwrap()
            .subscribe([topic])
            .with_drain_timeout(Duration::from_millis(50))
            .serve(service)
            .with_graceful_shutdown(async move { stopped.await.expect("the test stops it") });
        Self { task: tokio::spawn(serve.into_future()), stop }
    }

    async fn stop(self) -> Summary {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap()
    }
}

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let poll = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, poll).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

/// Fills a topic with one record for each partition.
async fn fill(topic: &'static str) {
    let fill = move || {
        KAFKA.create_topic(topic, PARTITIONS as i32, &[]).unwrap();
        let message = |partition| {
            Message::to(topic).partition(partition).header("id", format!("id-{partition}"))
        };
        KAFKA.producer().produce_all((0..PARTITIONS as i32).map(message)).unwrap();
    };
    tokio::task::spawn_blocking(fill).await.unwrap();
}

/// Waits until both offsets are committed, and stops both consumers. One of the records was taken
/// over; neither ran twice.
async fn finish(
    (topic, redis): (&'static str, &RedisServer),
    (first, next): (Serving, Serving),
    (of_first, of_next): (&Observed, &Observed),
) {
    let committed = move || {
        let config = KAFKA.consumer_config(topic);
        group::wait_until_committed(&config, topic, PARTITIONS as i32, TIMEOUT);
    };
    tokio::task::spawn_blocking(committed).await.unwrap();
    let (first, next) = (first.stop().await, next.stop().await);
    assert_eq!((first.processed, first.revoked), (1, 1), "{first:?}");
    assert_eq!(next.processed, 1, "{next:?}");
    assert_eq!(of_first.runs.load(Ordering::SeqCst), PARTITIONS);
    assert_eq!(of_next.runs.load(Ordering::SeqCst), 0);
    assert_eq!(of_next.duplicates.load(Ordering::SeqCst), 1);
    assert_completed(redis);
}

/// Checks that both entries are COMPLETED by the first attempt.
fn assert_completed(redis: &RedisServer) {
    let entries = read_entries([redis], "late");
    for partition in 0..PARTITIONS {
        let entry = entries.get(&format!("id-{partition}")).unwrap();
        assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn handler_finishing_after_revoke_answers_next_owner() {
    fill("late-handler").await;
    let redis = RedisServer::start().unwrap();
    // A handler that blocks its thread cannot be dropped at the end of the drain timeout.
    let of_first = Observed { blocks: true, ..Observed::default() };
    let first = Serving::start("late-handler", redis.url(), &of_first).await;
    until("the handlers run", || of_first.runs.load(Ordering::SeqCst) == PARTITIONS).await;
    let of_next = Observed::default();
    let next = Serving::start("late-handler", redis.url(), &of_next).await;
    until("the next owner has a record", || of_next.calls.load(Ordering::SeqCst) > 0).await;
    of_first.may_end.store(true, Ordering::SeqCst);
    finish(("late-handler", &redis), (first, next), (&of_first, &of_next)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn completion_unanswered_at_revoke_answers_next_owner() {
    fill("late-answer").await;
    let redis = RedisServer::start().unwrap();
    // Redis then has the scripts, and needs no second request for a completion.
    let other = runner(&start_keeper(redis.url()).await, OnLost::Cancel);
    other.run("other", async |_| Ok::<_, BoxError>(())).await.unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let of_first = Observed { blocks: true, ..Observed::default() };
    let first = Serving::start("late-answer", redis.url_through(proxy.addr()), &of_first).await;
    until("the handlers run", || of_first.runs.load(Ordering::SeqCst) == PARTITIONS).await;
    // The completions arrive, and their answers do not.
    proxy.swallow_replies();
    of_first.may_end.store(true, Ordering::SeqCst);
    let is_completed = |partition| {
        let entries = read_entries([&redis], "late");
        entries.get(&format!("id-{partition}")).unwrap().state() == State::Completed
    };
    until("the keys are completed", || (0..PARTITIONS).all(is_completed)).await;
    let of_next = Observed::default();
    let next = Serving::start("late-answer", redis.url(), &of_next).await;
    until("the next owner answers", || of_next.duplicates.load(Ordering::SeqCst) > 0).await;
    proxy.heal().unwrap();
    finish(("late-answer", &redis), (first, next), (&of_first, &of_next)).await;
}
