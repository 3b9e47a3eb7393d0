//! The task of a child process.

use std::path::PathBuf;
use std::time::Duration;

use campanile::{BoxError, ConsumerConfig, ProcessingOrder};
use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

/// The group notices a killed consumer after this time, so that its successor starts soon.
const SESSION_TIMEOUT_MS: &str = "6000";

/// One run of one contestant over one topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) contestant: Contestant,
    pub(super) brokers: String,
    pub(super) redis: String,
    /// The processes of Redis and of the broker.
    pub(super) servers: [u32; 2],
    pub(super) topic: String,
    pub(super) partitions: i32,
    /// A unique group, so that each run starts at the beginning of the topic.
    pub(super) group: String,
    /// The run ends after this many records.
    pub(super) records: u64,
    /// The run ends at the latest this long after its first record.
    pub(super) limit: Duration,
    /// As in [`Topic::timed`](super::topic::Topic::timed).
    pub(super) timed: bool,
    /// As in [`Topic::handler_time`](super::topic::Topic::handler_time).
    pub(super) handler_time: Duration,
    /// The file of the handlers' effects, if they have any.
    pub(super) ledger: Option<PathBuf>,
}

/// A program to measure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Contestant {
    /// Campanile: the driver, the idempotency layer and the Redis store on their default settings.
    Campanile { order: OrderKind, runtime: RuntimeKind, telemetry: Telemetry },
    /// The driver with a service that does nothing, and no layer.
    NoOp { order: OrderKind, runtime: RuntimeKind },
    /// Like `Campanile`, one record at a time; reports the time since each record was produced.
    Latency { runtime: RuntimeKind },
    /// The driver with handlers that never finish.
    Stalled,
    /// Handwritten: one record at a time, as in tutorials.
    Tutorial,
    /// Handwritten: a task per partition.
    Partitions(Check),
    /// Handwritten: 256 workers, each with its share of the keys.
    Keyed,
    /// Handwritten: 256 records concurrently in any order.
    Concurrent,
    /// Handwritten: two calls to Redis per record; reports the time since each record was produced.
    RoundTrips,
    /// An rdkafka consumer that only polls.
    Bare,
}

/// An [`ProcessingOrder`] in serializable form.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum OrderKind {
    ByPartition,
    ByKey,
    None,
}

/// How a handwritten consumer recognizes duplicates in Redis.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Check {
    /// A claim before the handler, which is kept. A claimed key is skipped.
    Claim,
    /// As `Claim`, and the handler is observed.
    ObservedClaim,
    /// A claim before the handler, which expires unless the key is completed after the handler. A
    /// claimed key is waited for.
    ClaimAndCompletion,
}

/// What observes a contestant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Telemetry {
    /// Nothing.
    None,
    /// The subscriber of the README.
    Subscriber,
    /// A recorder of metrics, which is read every second.
    Recorder,
}

/// The runtime of a contestant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum RuntimeKind {
    /// Tokio's current-thread runtime.
    CurrentThread,
    /// Tokio's multi-thread runtime with two workers.
    TwoWorkers,
}

impl Task {
    /// Settings of Campanile's consumer: the defaults, except for the start and the session.
    pub(super) fn consumer_config(&self) -> ConsumerConfig {
        ConsumerConfig::new(&self.brokers, &self.group)
            .set("auto.offset.reset", self.start())
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
    }

    /// Settings of a handwritten consumer: the program stores offsets, and librdkafka's timer
    /// commits them.
    pub(super) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.group)
            .set("auto.offset.reset", self.start())
            .set("session.timeout.ms", SESSION_TIMEOUT_MS)
            .set("enable.auto.offset.store", "false");
        config
    }

    /// Where a new group starts.
    fn start(&self) -> &'static str {
        if self.timed { "latest" } else { "earliest" }
    }
}

impl OrderKind {
    pub(super) fn order(self) -> ProcessingOrder {
        match self {
            Self::ByPartition => ProcessingOrder::by_partition(),
            Self::ByKey => ProcessingOrder::by_key(),
            Self::None => ProcessingOrder::unordered(),
        }
    }
}

impl RuntimeKind {
    pub(super) const ALL: [Self; 2] = [Self::TwoWorkers, Self::CurrentThread];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current-thread",
            Self::TwoWorkers => "2 workers",
        }
    }

    pub(super) fn build(self) -> Result<Runtime, BoxError> {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::TwoWorkers => Builder::new_multi_thread(),
        };
        if matches!(self, Self::TwoWorkers) {
            builder.worker_threads(2);
        }
        Ok(builder.enable_all().build()?)
    }
}
