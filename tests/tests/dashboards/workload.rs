//! Handlers that do what their record says, under the layer.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use campanile::consumer::{Serve, Summary};
use campanile::error::{permanent, unavailable};
use campanile::prelude::*;
use campanile::{Backoff, ConsumerError, Handle, KeyExtractor, Request};
use campanile_test::Message;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};

/// The time limit for everything that the test waits for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, serde::Deserialize, serde::Serialize)]
pub(crate) enum Does {
    Succeed,
    FailOnce,
    PanicOnce,
    FailForever,
    /// Waits at the gate.
    Hold,
    /// Never ends.
    Hang,
    /// Fails while the dependency is down.
    Depend,
}

#[derive(Clone, serde::Deserialize, serde::Serialize)]
pub(crate) struct Job {
    id: String,
    does: Does,
    cents: u32,
}

impl Job {
    pub(crate) fn new(id: &str, does: Does) -> Self {
        Self { id: id.to_owned(), does, cents: 100 }
    }

    /// The same job with another payload.
    pub(crate) fn of_cents(self, cents: u32) -> Self {
        Self { cents, ..self }
    }

    pub(crate) fn message(&self, topic: &str, partition: i32) -> Message {
        let payload = serde_json::to_vec(self).unwrap();
        Message::to(topic).partition(partition).payload(payload)
    }

    /// Creates a request without a consumer.
    pub(crate) fn request(self) -> Request<Self> {
        Request::new(Record::builder("direct", 0, 0).build(), self)
    }
}

/// Holds handlers until the test releases them.
#[derive(Clone)]
pub(crate) struct Gate {
    held: Arc<Semaphore>,
    released: Arc<Semaphore>,
    /// Whether what handlers depend on is available.
    is_available: Arc<AtomicBool>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            held: Arc::new(Semaphore::new(0)),
            released: Arc::new(Semaphore::new(0)),
            is_available: Arc::default(),
        }
    }

    /// Makes what handlers depend on available.
    pub(crate) fn restore_dependency(&self) {
        self.is_available.store(true, Ordering::Relaxed);
    }

    async fn hold(&self) {
        self.held.add_permits(1);
        self.released.acquire().await.unwrap().forget();
    }

    /// Waits until this many further handlers wait at the gate.
    pub(crate) async fn wait_until_held(&self, count: u32) {
        let held = timeout(TIMEOUT, self.held.acquire_many(count)).await;
        held.expect("handlers are held").unwrap().forget();
    }

    pub(crate) fn release(&self, count: usize) {
        self.released.add_permits(count);
    }
}

pub(crate) type TestService = BoxCloneService<Request<Job>, Outcome<()>, BoxError>;

/// The settings of a layer, with a short backoff.
pub(crate) fn config(namespace: &str) -> IdempotencyConfig {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10)).unwrap();
    IdempotencyConfig::new(namespace).with_backoff(backoff).with_completed_details(true)
}

/// The extractor of a job's key. A job without an id has none, and the id `?` is invalid.
pub(crate) fn job_key() -> impl KeyExtractor<Request<Job>> + Send + Sync + 'static {
    let id = |request: &Request<Job>| match &*request.body().id {
        "?" => Err(BoxError::from("invalid")),
        id => Ok(campanile::IdempotencyKey::new(id.to_owned())),
    };
    key::from_fn(id).fingerprint_by(|request: &Request<Job>, parts| {
        parts.update(request.body().cents.to_string());
    })
}

pub(crate) fn service<E>(layer: IdempotencyLayer<E>, gate: &Gate) -> TestService
where
    E: KeyExtractor<Request<Job>> + Send + Sync + 'static,
{
    let gate = gate.clone();
    BoxCloneService::new(layer.layer(service_fn(move |request| work(gate.clone(), request))))
}

/// Runs a job, again if the store does not answer in time, as on a busy machine.
pub(crate) async fn run_job(
    service: TestService,
    job: Request<Job>,
) -> Result<Outcome<()>, BoxError> {
    loop {
        let result = service.clone().oneshot(job.clone()).await;
        let error = result.as_ref().err().and_then(|error| IdempotencyError::find(&**error));
        if !matches!(error, Some(IdempotencyError::Store(_))) {
            return result;
        }
    }
}

async fn work(gate: Gate, request: Request<Job>) -> Result<(), BoxError> {
    let is_first = request.lock().ok().is_none_or(|lock| lock.attempt() == 1);
    match request.body().does {
        Does::FailOnce if is_first => {
            if let Ok(lock) = request.lock() {
                lock.step("reserve", async || Ok::<_, BoxError>(1)).await?;
            }
            Err("busy".into())
        }
        // Prints nothing.
        Does::PanicOnce if is_first => resume_unwind(Box::new("planted")),
        Does::FailForever => Err(permanent("card expired").into()),
        Does::Hold => {
            gate.hold().await;
            Ok(())
        }
        Does::Hang => pending().await,
        Does::Depend if !gate.is_available.load(Ordering::Relaxed) => {
            Err(unavailable("connection refused").into())
        }
        Does::Succeed | Does::FailOnce | Does::PanicOnce | Does::Depend => Ok(()),
    }
}

/// A consumer while it serves.
pub(crate) struct Serving {
    pub(crate) handle: Handle,
    task: JoinHandle<Result<Summary, ConsumerError>>,
}

impl Serving {
    pub(crate) fn start(serve: Serve) -> Self {
        Self { handle: serve.handle(), task: tokio::spawn(serve.into_future()) }
    }

    pub(crate) async fn stop(self) {
        self.handle.shutdown();
        timeout(TIMEOUT, self.task).await.expect("serving ends").unwrap().unwrap();
    }
}
