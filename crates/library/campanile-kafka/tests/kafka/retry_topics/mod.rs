//! Records that wait for a retry in retry topics.

mod copies;
mod every_record;
mod foreign;
mod keys;
mod refused;
mod waiting;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{BoxError, Record};
use campanile_kafka::{Consumer, RetryTopics};
use campanile_test::{Message, MockKafka};
use rdkafka::ClientConfig;
use tokio::time::Instant;
use tower::{Service, service_fn};

use crate::support::consumer;

const SOON: &str = "orders.soon";
const LATER: &str = "orders.later";

const HOUR: Duration = Duration::from_secs(3600);

const AFTER: Duration = Duration::from_millis(100);

/// Starts a cluster with these payloads in the single partition of `orders`, and two retry topics.
fn kafka(payloads: &[&str]) -> MockKafka {
    let kafka = MockKafka::start(1).unwrap();
    for topic in ["orders", SOON, LATER] {
        kafka.create_topic(topic, 1).unwrap();
    }
    let message = |payload: &&str| Message::to("orders").partition(0).payload(*payload);
    kafka.producer().produce_all(payloads.iter().map(message)).unwrap();
    kafka
}

fn retry_topics() -> RetryTopics {
    RetryTopics::new().then(SOON, AFTER).then(LATER, AFTER * 3)
}

fn retrying(config: ClientConfig) -> Consumer {
    consumer(config, "orders").with_retry_topics(retry_topics())
}

/// The calls of a handler and their times.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(Record, Instant)>>>);

impl Calls {
    /// Records the call, and counts how often the record has arrived so far, including its copies.
    fn push(&self, record: &Record) -> usize {
        let mut calls = self.0.lock().unwrap();
        calls.push((record.clone(), Instant::now()));
        calls.iter().filter(|(other, _)| other.origin() == record.origin()).count()
    }

    fn all(&self) -> Vec<(Record, Instant)> {
        self.0.lock().unwrap().clone()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Topic and origin's offset of each call.
    fn topics_and_offsets(&self) -> Vec<(String, i64)> {
        let topic_and_offset =
            |(record, _): &(Record, Instant)| (record.topic().to_owned(), record.origin().offset);
        self.all().iter().map(topic_and_offset).collect()
    }
}

/// A service that fails with this error as often as the payload says.
fn failing<E: Fn() -> BoxError + Clone + Send + 'static>(
    calls: &Calls,
    error: E,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<E> {
    let calls = calls.clone();
    service_fn(move |record: Record| {
        let payload = std::str::from_utf8(record.payload().unwrap()).unwrap();
        let fails: usize = payload.parse().unwrap();
        let result = if calls.push(&record) <= fails { Err(error()) } else { Ok(()) };
        async { result }
    })
}

fn busy() -> BoxError {
    "gateway is busy".into()
}

fn expected_calls(expected_calls: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected_calls.iter().map(|(topic, offset)| ((*topic).to_owned(), *offset)).collect()
}
