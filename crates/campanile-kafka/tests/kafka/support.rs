//! What the tests share.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Coordinates, Record};
use campanile_kafka::{Consumer, ConsumerError, Summary};
use campanile_test::{Message, MockKafka};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::Service;

/// How long anything may take before the test fails.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// A mock cluster with a topic of this many partitions, in each of which this many records are.
pub(crate) fn mock(topic: &str, partitions: i32, records: usize) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic(topic, partitions).unwrap();
    fill(&kafka, topic, partitions, records);
    kafka
}

/// Adds this many records to each partition.
pub(crate) fn fill(kafka: &MockKafka, topic: &str, partitions: i32, records: usize) {
    kafka
        .producer()
        .produce_all(messages(topic, partitions, records))
        .unwrap();
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

/// A consumer of this topic.
pub(crate) fn consumer(config: ClientConfig, topic: &str) -> Consumer {
    Consumer::new(config).unwrap().subscribe([topic])
}

/// A consumer that serves.
pub(crate) struct Serving {
    task: JoinHandle<Result<Summary, ConsumerError>>,
    stop: oneshot::Sender<()>,
}

pub(crate) fn serve<S, E>(consumer: Consumer, service: S) -> Serving
where
    S: Service<Record, Error = E> + Send + 'static,
    E: Into<BoxError>,
    S::Future: Send + 'static,
{
    let (stop, stopped) = oneshot::channel();
    let serve = consumer.serve(service).with_graceful_shutdown(async move {
        // Only `stop` says so; a `Serving` that is dropped drops the future.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    Serving {
        task: tokio::spawn(serve.into_future()),
        stop,
    }
}

impl Serving {
    /// Stops it gracefully.
    pub(crate) async fn stop(self) -> Result<Summary, ConsumerError> {
        self.stop.send(()).expect("it serves");
        within("the end of serving", self.task).await.unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(self) -> Result<Summary, ConsumerError> {
        within("the end of serving", self.task).await.unwrap()
    }

    /// Drops its future.
    pub(crate) async fn drop(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// What a handler was called with, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Coordinates>>>);

impl Log {
    pub(crate) fn push(&self, record: &Record) {
        self.0.lock().unwrap().push(record.coordinates().clone());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Partition and offset of each.
    pub(crate) fn all(&self) -> Vec<(i32, i64)> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|c| (c.partition, c.offset))
            .collect()
    }

    /// The offsets of one partition.
    pub(crate) fn of(&self, partition: i32) -> Vec<i64> {
        self.all()
            .into_iter()
            .filter(|(p, _)| *p == partition)
            .map(|(_, o)| o)
            .collect()
    }

    pub(crate) async fn reaches(&self, len: usize) {
        until(&format!("{len} records"), || self.len() >= len).await;
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

pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(BOUND, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {BOUND:?}"),
    }
}

/// The committed offset of each partition; `None` where there is none.
pub(crate) fn committed(config: &ClientConfig, topic: &str, partitions: i32) -> Vec<Option<i64>> {
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions - 1);
    let offsets = consumer.committed_offsets(list, BOUND).unwrap();
    let offset = |partition| match offsets.find_partition(topic, partition).unwrap().offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    (0..partitions).map(offset).collect()
}

/// Waits until these are the committed offsets.
pub(crate) async fn until_committed(config: &ClientConfig, topic: &str, offsets: &[i64]) {
    let offsets: Vec<Option<i64>> = offsets.iter().copied().map(Some).collect();
    let mut last = Vec::new();
    let poll = async {
        loop {
            let (config, topic, partitions) =
                (config.clone(), topic.to_owned(), offsets.len() as i32);
            let task = move || committed(&config, &topic, partitions);
            last = tokio::task::spawn_blocking(task).await.unwrap();
            if last == offsets {
                return;
            }
        }
    };
    if tokio::time::timeout(BOUND, poll).await.is_err() {
        panic!("committed are {last:?} and not {offsets:?} within {BOUND:?}");
    }
}
