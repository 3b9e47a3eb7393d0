//! Liveness and readiness of a consumer.

use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use campanile_core::{BoxError, Record, error};
use campanile_idempotency::{IdempotencyError, StoreError};
use campanile_kafka::{Handle, HealthService, Paused, Unhealthy};
use campanile_test::{MockKafka, eventually};
use tokio::time::Instant;
use tower::{Service, ServiceExt, service_fn};

use crate::support::{consumer, fill, mock, serve, start, until, until_committed};

fn accepting() -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send
{
    service_fn(|_: Record| async { Ok(()) })
}

fn is_ready(handle: &Handle) -> bool {
    handle.health().ready.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_is_ready_with_an_assignment_even_if_empty() {
    let kafka = mock("orders", 1, 1);
    let serve_one = consumer(kafka.consumer_config("g"), "orders").serve(accepting());
    let first = serve_one.handle();
    assert_eq!(first.health().ready, Err(Unhealthy::Starting));
    assert_eq!(first.health().live, Ok(()));
    let one = start(serve_one);
    until("the first consumer is ready", || is_ready(&first)).await;
    assert_eq!(first.status().partitions.len(), 1);

    let other = serve(consumer(kafka.consumer_config("g"), "orders"), accepting());
    let second = other.handle();
    until("the spare consumer is ready", || is_ready(&second)).await;
    until("both consumers are ready again", || is_ready(&first) && is_ready(&second)).await;
    let partitions = || first.status().partitions.len() + second.status().partitions.len();
    until("one consumer owns the partition", || partitions() == 1).await;
    one.stop().await.unwrap();
    other.stop().await.unwrap();
    for handle in [first, second] {
        assert_eq!(handle.health().live, Err(Unhealthy::Ended));
        assert_eq!(handle.health().ready, Err(Unhealthy::Ended));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_brokers_keep_the_consumer_live_but_not_ready() {
    let kafka = mock("orders", 1, 1);
    let mut config = kafka.consumer_config("g");
    config.set("session.timeout.ms", "1000").set("heartbeat.interval.ms", "100");
    let serving = serve(consumer(config, "orders"), accepting());
    let handle = serving.handle();
    until("the consumer is ready", || is_ready(&handle)).await;
    kafka.cluster().broker_down(1).unwrap();
    let unassigned = Err(Unhealthy::Unassigned);
    until("the session has expired", || handle.health().ready == unassigned).await;
    assert_eq!(handle.health().live, Ok(()));
    kafka.cluster().broker_up(1).unwrap();
    until("the consumer is ready again", || is_ready(&handle)).await;
    serving.stop().await.unwrap();
}

/// A handler that reports its store down while `down` is set, and otherwise returns this result.
fn with_store(
    down: &Arc<AtomicBool>,
    otherwise: fn() -> Result<(), BoxError>,
) -> impl FnMut(Record) -> Ready<Result<(), BoxError>> + Clone + use<> {
    let down = down.clone();
    move |_| {
        ready(match down.load(Ordering::SeqCst) {
            true => Err(IdempotencyError::Store(StoreError::unavailable("refused")).into()),
            false => otherwise(),
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_store_is_not_ready_but_live() {
    let kafka = mock("orders", 1, 1);
    let down = Arc::new(AtomicBool::new(false));
    let service = service_fn(with_store(&down, || Ok(())));
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), service);
    let handle = serving.handle();
    until("the consumer is ready", || is_ready(&handle)).await;
    for _ in 0..2 {
        down.store(true, Ordering::SeqCst);
        fill(&kafka, "orders", 1, 1);
        until("the consumer is not ready", || {
            handle.health().ready == Err(Unhealthy::StoreUnavailable)
        })
        .await;
        assert_eq!(handle.health().live, Ok(()));
        down.store(false, Ordering::SeqCst);
        until("the consumer is ready again", || is_ready(&handle)).await;
    }
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_consumer_is_ready_despite_unavailable_store() {
    let kafka = mock("orders", 1, 1);
    let service = service_fn(|_: Record| async {
        Err::<(), _>(IdempotencyError::Store(StoreError::unavailable("refused")))
    });
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), service);
    let handle = serving.handle();
    let store_down = || handle.health().ready == Err(Unhealthy::StoreUnavailable);
    until("the consumer is not ready", store_down).await;
    handle.pause();
    until("the consumer is ready", || is_ready(&handle)).await;
    handle.resume();
    until("the store is called again", store_down).await;
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_consumer_is_ready_after_a_store_outage() {
    let kafka = mock("orders", 1, 1);
    let down = Arc::new(AtomicBool::new(true));
    // Skips records without calling the store, whether or not the store is up.
    let skips = || Err(error::skip("of no interest").into());
    let service = service_fn(with_store(&down, skips));
    let config = kafka.consumer_config("g");
    let serving = serve(consumer(config.clone(), "orders"), service);
    let handle = serving.handle();
    until("the consumer is not ready", || {
        handle.health().ready == Err(Unhealthy::StoreUnavailable)
    })
    .await;
    down.store(false, Ordering::SeqCst);
    until_committed(&config, "orders", &[1]).await;
    until("the consumer is ready", || is_ready(&handle)).await;
    serving.stop().await.unwrap();
}

/// A service with a `poll_ready` that blocks the thread until it is released.
#[derive(Clone)]
struct BlockingReady(Arc<Mutex<mpsc::Receiver<()>>>);

impl Service<Record> for BlockingReady {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // An error means that nothing can release it any more.
        let _ = self.0.lock().unwrap().recv();
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Record) -> Self::Future {
        std::future::ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_runtime_is_not_live_until_released() {
    // One partition for each thread of the runtime.
    let kafka = mock("orders", 2, 1);
    let (release, released) = mpsc::channel();
    let blocks = BlockingReady(Arc::new(Mutex::new(released)));
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), blocks);
    let handle = serving.handle();
    // The runtime's timers do not fire once both of its threads are blocked.
    let is_assigned = || (handle.status().partitions.len() == 2).then_some(());
    eventually(Duration::from_secs(60), is_assigned).expect("the partitions are assigned");
    assert_eq!(handle.health().live, Ok(()));
    // The driver may be silent for 30 s.
    let start = Instant::now();
    while handle.health().live.is_ok() {
        thread::sleep(Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(90), "the hang is not detected");
    }
    assert!(start.elapsed() >= Duration::from_secs(25), "{:?}", start.elapsed());
    let Err(why @ Unhealthy::Runtime { .. }) = handle.health().live else { panic!() };
    assert!(why.to_string().contains("the runtime has run no task for 3"), "{why}");
    drop(release);
    until("the runtime continues", || handle.health().live.is_ok()).await;
    serving.stop().await.unwrap();
}

async fn get(routes: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let (parts, body) = routes.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, 1000).await.unwrap();
    (parts.status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_service_answers_wherever_it_is_mounted() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let serving = start(consumer(kafka.consumer_config("g"), "orders").serve(accepting()));
    let handle = serving.handle();
    let service = HealthService::new(handle.clone());
    let routes = Router::new()
        .nest_service("/health", service.clone())
        .route_service("/ready", service.clone())
        .route_service("/live", service);
    until("the consumer is ready", || is_ready(&handle)).await;
    // A paused consumer stays ready, so that the caller that resumes it can reach it.
    handle.pause();
    assert_eq!(handle.paused(), Some(Paused::ByHandle));
    for path in ["/ready", "/health/ready"] {
        assert_eq!(get(&routes, path).await, (StatusCode::OK, "ready\n".to_owned()));
    }
    for path in ["/live", "/health/live"] {
        assert_eq!(get(&routes, path).await, (StatusCode::OK, "live\n".to_owned()));
    }
    assert_eq!(get(&routes, "/health/else").await.0, StatusCode::NOT_FOUND);
    serving.stop().await.unwrap();
    for path in ["/live", "/health/ready"] {
        let ended = (StatusCode::SERVICE_UNAVAILABLE, "serving has ended\n".to_owned());
        assert_eq!(get(&routes, path).await, ended);
    }
}
