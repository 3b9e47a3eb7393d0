//! Helpers shared by the tests.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use campanile_core::{BoxError, Coordinates, Record};
use campanile_kafka::{Consumer, ConsumerError, ConsumerStage, Handle, Serve, Summary};
use campanile_test::{Message, MockKafka};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tower::{Service, service_fn};

/// Time limit for everything a test waits for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a mock cluster with a topic of this many partitions, each with this many records.
pub(crate) fn mock(topic: &str, partitions: i32, records: usize) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic(topic, partitions).unwrap();
    fill(&kafka, topic, partitions, records);
    kafka
}

/// Adds this many records to each partition.
pub(crate) fn fill(kafka: &MockKafka, topic: &str, partitions: i32, records: usize) {
    kafka.producer().produce_all(messages(topic, partitions, records)).unwrap();
}

pub(crate) fn messages(
    topic: &str,
    partitions: i32,
    records: usize,
) -> impl Iterator<Item = Message> {
    (0..records).flat_map(move |n| {
        let message = move |p| Message::to(topic).partition(p).payload(format!("{p}-{n}"));
        (0..partitions).map(message)
    })
}

/// Creates a consumer of this topic.
pub(crate) fn consumer(config: ClientConfig, topic: &str) -> Consumer {
    Consumer::new(config).unwrap().subscribe([topic])
}

/// Prints the driver's events when run with `RUST_LOG=debug` and `--nocapture`.
fn show_events() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init();
    });
}

/// A consumer while it serves.
pub(crate) struct Serving {
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: Option<oneshot::Sender<()>>,
    stopping: Arc<AtomicBool>,
    handle: Handle,
}

pub(crate) fn serve<S, E>(consumer: Consumer, service: S) -> Serving
where
    S: Service<Record, Error = E> + Clone + Send + 'static,
    S::Response: 'static,
    E: Into<BoxError>,
    S::Future: Send + 'static,
{
    start(consumer.serve(service))
}

pub(crate) fn start(serve: Serve) -> Serving {
    show_events();
    let (stop, stopped) = oneshot::channel();
    let stopping = Arc::new(AtomicBool::new(false));
    let notified = stopping.clone();
    let handle = serve.handle();
    let serve = serve.with_graceful_shutdown(async move {
        // Only `stop` requests a shutdown; dropping a `Serving` drops the future.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        notified.store(true, Ordering::SeqCst);
    });
    Serving { task: tokio::spawn(serve.into_future()), stop: Some(stop), stopping, handle }
}

impl Serving {
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Begins a graceful shutdown, and waits until the driver has noticed.
    pub(crate) async fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).expect("the consumer is serving");
        let begun = || {
            self.stopping.load(Ordering::SeqCst)
                && self.handle.status().stage != ConsumerStage::Serving
        };
        until("the driver begins to stop", begun).await;
    }

    /// Shuts the consumer down gracefully.
    pub(crate) async fn stop(mut self) -> Result<Summary, ConsumerError> {
        self.begin_shutdown().await;
        self.ended().await
    }

    /// Waits until serving has ended.
    pub(crate) async fn ended(self) -> Result<Summary, ConsumerError> {
        within("serving ends", self.task).await.unwrap()
    }

    /// Drops the serving future.
    pub(crate) async fn drop(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Creates a handler that logs each record at its begin, and takes a permit of the gate to end.
pub(crate) fn gated(
    log: &Log,
    gate: &Arc<Semaphore>,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let (log, gate) = (log.clone(), gate.clone());
    service_fn(move |record: Record| {
        log.push(&record);
        let gate = gate.clone();
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    })
}

/// The calls of a handler, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Coordinates>>>);

impl Log {
    pub(crate) fn push(&self, record: &Record) {
        self.0.lock().unwrap().push(record.coordinates().clone());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Partition and offset of each call.
    pub(crate) fn all(&self) -> Vec<(i32, i64)> {
        self.0.lock().unwrap().iter().map(|c| (c.partition, c.offset)).collect()
    }

    /// The offsets of one partition.
    pub(crate) fn of(&self, partition: i32) -> Vec<i64> {
        self.all().into_iter().filter(|(p, _)| *p == partition).map(|(_, o)| o).collect()
    }

    pub(crate) async fn reaches(&self, len: usize) {
        until(&format!("{len} records are handled"), || self.len() >= len).await;
    }
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let poll = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, poll).await;
}

/// Waits until each assigned partition holds this many records, including those in flight.
pub(crate) async fn until_held(handle: &Handle, records: u64) {
    let all_hold = || handle.status().partitions.iter().all(|p| p.buffered == records);
    until("all records are received", all_hold).await;
}

pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("timed out after {TIMEOUT:?} waiting until {what}"),
    }
}

/// Reads the committed offset of each partition, if there is one.
pub(crate) fn committed(config: &ClientConfig, topic: &str, partitions: i32) -> Vec<Option<i64>> {
    try_committed(config, topic, partitions).expect("the brokers answer")
}

fn try_committed(
    config: &ClientConfig,
    topic: &str,
    partitions: i32,
) -> KafkaResult<Vec<Option<i64>>> {
    let consumer: BaseConsumer = config.create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions - 1);
    let offsets = consumer.committed_offsets(list, TIMEOUT)?;
    let offset = |partition| match offsets.find_partition(topic, partition).unwrap().offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    Ok((0..partitions).map(offset).collect())
}

/// Waits until these offsets are committed.
pub(crate) async fn until_committed(config: &ClientConfig, topic: &str, offsets: &[i64]) {
    until_committed_within(TIMEOUT, config, topic, offsets).await;
}

pub(crate) async fn until_committed_within(
    limit: Duration,
    config: &ClientConfig,
    topic: &str,
    offsets: &[i64],
) {
    let offsets: Vec<Option<i64>> = offsets.iter().copied().map(Some).collect();
    let mut last = Ok(Vec::new());
    let poll = async {
        while last.as_ref() != Ok(&offsets) {
            let (config, topic) = (config.clone(), topic.to_owned());
            let partitions = offsets.len() as i32;
            let ask = move || try_committed(&config, &topic, partitions);
            last = tokio::task::spawn_blocking(ask).await.unwrap();
        }
    };
    if tokio::time::timeout(limit, poll).await.is_err() {
        panic!("timed out after {limit:?}: committed {last:?}, expected {offsets:?}");
    }
}
