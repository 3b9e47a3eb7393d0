//! Kafka consumers of Campanile: feeds records into a tower service, and commits the offsets of finished records
//! only.
//!
//! ```
//! use campanile_core::{BoxError, DecodeLayer, Request, handler, key};
//! use campanile_idempotency::{IdempotencyLayer, MemoryStore};
//! use campanile_kafka::Consumer;
//! use campanile_test::{Message, MockKafka};
//! use std::time::Duration;
//! use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
//! use tower::ServiceBuilder;
//!
//! #[derive(serde::Deserialize)]
//! struct Payment { id: String, cents: u64 }
//!
//! async fn charge(charged: UnboundedSender<u64>, request: Request<Payment>) -> Result<(), BoxError> {
//!     Ok(charged.send(request.body().cents)?)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), BoxError> {
//! let kafka = MockKafka::start(1)?; // an in-process cluster
//! kafka.create_topic("payments", 3)?;
//! for _ in 0..2 {
//!     let payment = Message::to("payments").partition(0).payload(r#"{"id":"p-1","cents":100}"#);
//!     kafka.producer().produce(payment)?; // the same payment twice
//! }
//!
//! let (charged, mut charges) = unbounded_channel();
//! let service = ServiceBuilder::new()
//!     // a record that does not decode never acquires a lock
//!     .layer(DecodeLayer::json())
//!     // one lock per payment
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), "billing.payments", key::field(|p: &Payment| &p.id))?)
//!     // a handler that takes longer counts as a failed attempt
//!     .timeout(Duration::from_secs(10))
//!     .service(handler(charged, charge));
//!
//! let summary = Consumer::new(kafka.consumer_config("billing"))?
//!     .subscribe(["payments"])
//!     .serve(service)
//!     .with_graceful_shutdown(async move {
//!         // a real program uses `with_shutdown_signals` instead, for SIGTERM and Ctrl-C
//!         assert_eq!(charges.recv().await, Some(100));
//!     })
//!     .await?;
//! assert!(summary.processed >= 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * **Order.** The records of a partition are processed in order, one at a time. A record that is to be
//!   retried holds up its own partition only. Partitions are processed concurrently. With [`ProcessingOrder`], only
//!   the records of one key are processed in order, or all records concurrently. With [`RetryTopics`],
//!   records to retry wait in a topic of their own and hold up no other record, at the cost of ordering.
//! * **Commits.** An offset is committed only once every record below it is finished: the service
//!   responded with `Ok`, an explicit policy gave the record up, or its copy in a retry topic is
//!   acknowledged. A completion that arrives after its partition was revoked commits nothing.
//! * **Errors.** [`IdempotencyError`](campanile_idempotency::IdempotencyError) determines the reaction:
//!   a record with a locked key, or a key in backoff, is retried when the wait is over, and an
//!   unavailable store stops the dispatch. One record at a time is then dispatched as a probe, until the
//!   store has answered a probe and the dispatch resumes; a probe with a handler that runs for more than
//!   6 s counts as answered. None of this counts as an attempt. [`OnGiveUp`] determines what happens to
//!   records that are given up: by default the consumer stops. Other errors are classified; see
//!   [`with_classifier`](Consumer::with_classifier).
//! * **Outputs.** A handler's messages to other topics can be [committed in one
//!   transaction](Consumer::serve_transactional) with the offsets of its input records.
//! * **Dead letters.** With [`DeadLetter`], records that are given up are published to a dead-letter
//!   topic. Once the brokers have acknowledged a dead letter, the key's entry becomes FAILED; then the
//!   offset is committed. So no record is lost, but a dead letter may be published twice. While a dead
//!   letter cannot be published, its partition waits. When too many records fail, the consumer pauses:
//!   see [`FloodLimit`] and [`Handle`].
//! * **Panics.** A panic in a handler counts as a retryable error. A panic in `poll_ready` ends serving.
//! * **Rebalances.** Records in flight may finish after their partition is revoked, within
//!   [a timeout](Consumer::with_drain_timeout), and are committed before the partition is released.
//!   Records that do not finish are dropped, and their locks are released. [`Handle::rebalances`] reports
//!   each rebalance to the program.
//! * **Records** are passed on unchanged, except for the names of headers: librdkafka ends a name at its
//!   first NUL, and bytes that are not UTF-8 become U+FFFD. Records that are corrupt, or in a format
//!   that librdkafka does not know, end serving with an error; see [`ConsumerConfig`].
//! * **Memory** is bounded by [a budget](Consumer::with_budget).
//! * **Graceful shutdown** starts with a signal ([`Serve::with_shutdown_signals`]) or by a [`Handle`]:
//!   records in flight may finish, within the same timeout as in a rebalance. A second signal does not
//!   wait for them.
//! * **Health.** Liveness reports whether the driver makes progress; an unavailable store or broker does
//!   not affect it. See [`Health`], and [`HealthService`] for probes; [`Handle::status`] reports the
//!   lag of each partition.
//!
//! # Observability
//!
//! Each attempt has a span `record`, by default at level DEBUG
//! ([`with_span_level`](Consumer::with_span_level)), with the fields of OpenTelemetry's messaging
//! conventions. No span contains keys or payloads. Events report rebalances, retries, skipped records,
//! dead letters, failed commits, an unavailable store, and a [stalled
//! partition](Consumer::with_stall_warning) with the reason why it waits. Events at level ERROR require
//! action, among others: a record that stops the consumer or its partition, a dead letter that cannot
//! be published (once per record, then at WARN) or whose publications were all interrupted, a pause by
//! the flood limit, a panic in a classifier or an order extractor, a producer that cannot be replaced,
//! errors in librdkafka's own log, and data that Redis has lost.
//!
//! The field `record` contains the coordinates of a record. Events about retry copies also have the field
//! `origin`, the original coordinates. Retry events have `after`, the delay, and `retry_topic`. A dead
//! letter without its payload is `truncated`. librdkafka's own log has the target `librdkafka`.
//!
//! The consumer and its producers record the metrics that [`campanile_core::telemetry::instruments`] lists, through
//! the crate [`metrics`](https://docs.rs/metrics). [`Handle::status`] also has the number of
//! records by outcome.
//!
//! At startup, a drain timeout above half of `max.poll.interval.ms`, which a revoke would shorten, is
//! logged at WARN. `campanile doctor` compares the other settings of a deployment.
//!
//! # Layout
//!
//! * [`Consumer`] and [`ConsumerConfig`] configure the driver; [`Serve`] runs it, and completes with a
//!   [`Summary`] or a [`ConsumerError`].
//! * `campanile-driver` decides which record is started next and what is committed, without Kafka.
//! * `source` is its source over librdkafka's consumer, `native` what rdkafka lacks for that, and `workarounds` what
//!   would go without the faults of librdkafka. `client`, `oauth`, `log`, `topic_ids`: what all clients need.
//! * `epilogue` tells the driver what happens to records that were not processed: its `dead_letter` publishes
//!   those that are given up, and its `retry_topics` copies of those to retry; both by `publish`, which waits for
//!   acknowledgements.
//! * `transaction` commits [`Outputs`] with the offsets; a [`Publisher`] publishes outside of transactions.

mod client;
mod config;
mod consumer;
mod epilogue;
#[cfg(test)]
mod fuzz;
mod list_offsets;
mod log;
mod native;
mod oauth;
mod offset_identity;
mod publish;
mod seek;
mod source;
mod topic_ids;
mod transaction;
mod workarounds;

pub use self::config::ConsumerConfig;
pub use self::consumer::Consumer;
pub use self::epilogue::{
    DeadLetter, InvalidLetter, LetterHeaders, LetterLock, OnGiveUp, RetryTopics,
};
// For the command.
pub use self::oauth::OauthToken;
#[doc(hidden)]
pub use self::offset_identity::{commit_metadata, committed_topic_id};
pub use self::publish::{PublishError, Publisher, PublisherConfig};
pub use self::source::ToRecord;
#[doc(hidden)]
pub use self::topic_ids::topic_id;
pub use self::transaction::{IntoOutputs, Outputs, OutputsCodec, Transactions};
#[doc(no_inline)]
pub use {rdkafka, tracing};

pub use campanile_core::Output;
pub use campanile_driver::{
    ConsumerError, ConsumerStage, FloodLimit, Handle, Health, HealthService, NoRoute,
    PartitionStatus, Paused, ProcessingOrder, Rebalance, Rebalances, Routes, SeekError, SeekTo,
    Serve, SkipAt, Status, StoppedPartition, Summary, TopicPartition, UnavailableDependency,
    Unhealthy,
};
