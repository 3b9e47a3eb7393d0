//! The Kafka consumer driver of Campanile: it feeds records into a tower service, and commits the
//! offsets of those that are finished, and of no others.
//!
//! ```
//! use campanile_core::{BoxError, DecodeLayer, Request, key};
//! use campanile_idempotency::{IdempotencyLayer, MemoryStore};
//! use campanile_kafka::Consumer;
//! use campanile_test::{Message, MockKafka};
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//!
//! #[derive(serde::Deserialize)]
//! struct Payment { id: String, cents: u64 }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), BoxError> {
//! let kafka = MockKafka::start(1)?; // a cluster in this process
//! kafka.create_topic("payments", 3)?;
//! for _ in 0..2 {
//!     let payment = Message::to("payments").partition(0).payload(r#"{"id":"p-1","cents":100}"#);
//!     kafka.producer().produce(payment)?; // the same payment twice
//! }
//!
//! let (charged, mut charges) = tokio::sync::mpsc::unbounded_channel();
//! let service = ServiceBuilder::new()
//!     // what does not decode never takes a lock
//!     .layer(DecodeLayer::json())
//!     // one lock for each payment
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::field(|p: &Payment| &p.id))?)
//!     // a slow handler fails its attempt
//!     .timeout(Duration::from_secs(10))
//!     .service_fn(move |request: Request<Payment>| {
//!         let charged = charged.clone();
//!         async move { charged.send(request.body().cents) }
//!     });
//!
//! let summary = Consumer::new(kafka.consumer_config("billing"))?
//!     .subscribe(["payments"])
//!     .serve(service)
//!     .with_graceful_shutdown(async move {
//!         // a program would wait for Ctrl-C
//!         assert_eq!(charges.recv().await, Some(100));
//!     })
//!     .await?;
//! assert!(summary.processed >= 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! * **Order.** Records of a partition are processed in their order, one at a time; one that is to be
//!   tried again holds up its partition, and only that. Partitions are processed side by side. By
//!   [`Order`], the records of one key are in their order and others beside them, or all side by side.
//!   With [`RetryTopics`] what is to be tried again waits in a topic of its own and holds up nobody,
//!   which gives up the order.
//! * **Commits.** The offset that is committed has only finished records below it: those that the
//!   service answered with `Ok`, those that were given up by an explicit policy, and those whose copy is
//!   in a retry topic. A completion that comes after its partition was revoked commits nothing.
//! * **Errors.** [`IdempotencyError`](campanile_idempotency::IdempotencyError) says what follows: a
//!   key that is locked or backing off is tried again when its time has come, a store that is down
//!   stops the dispatch. Then one record at a time is dispatched as a probe, until the store has
//!   answered one, and all go on; a probe whose handler runs for more than 6 s counts as answered. None
//!   of this counts as an attempt. What is given up goes where [`GivenUp`] says: by default the consumer
//!   stops there. Other errors are classified; see [`with_classifier`](Consumer::with_classifier).
//! * **Outputs.** What a handler gives out for other topics can be [committed in one
//!   transaction](Consumer::serve_transactional) with the offsets of what it read.
//! * **Dead letters.** With [`DeadLetter`], what is given up is published to a topic of its own; when
//!   the brokers have acknowledged that, the key's entry becomes FAILED; then the offset is committed.
//!   So a record is lost nowhere, and a letter may be there twice. While a letter cannot be published,
//!   its partition waits. When too much dies, the consumer pauses: see [`FloodGuard`] and [`Handle`].
//! * **Panics.** In a handler they are as an error that is retried. In `poll_ready` they end serving.
//! * **Rebalances.** What is at work in a partition that is revoked may end, within
//!   [a time](Consumer::with_drain_timeout), and is committed before the partition is given away. What
//!   does not end is dropped, with its lock released.
//! * **Records** come as they are, but for names of headers: librdkafka ends a name at its first NUL,
//!   and what is not UTF-8 becomes U+FFFD. Records that are corrupt, or in a format that librdkafka does
//!   not know, end serving with an error; see [`ConsumerConfig`].
//! * **Memory** is bounded by [a budget](Consumer::with_budget).
//! * **The end** comes with a signal ([`Serve::with_shutdown_signals`]) or by a [`Handle`]: what is at
//!   work may end, within the same time as at a rebalance, and a second signal does not wait for it.
//! * **Health** is the driver's own progress: a store or brokers that are away leave it live. See
//!   [`Health`], and [`HealthService`] for probes; [`Handle::status`] tells the lag of each partition.
//!
//! # Events
//!
//! Each attempt has a span `record` at level DEBUG, with the fields of OpenTelemetry's messaging
//! conventions; keys and payloads are in none. Rebalances, retries, skipped records, dead letters,
//! failing commits and a store that goes down are events, and so is a [partition that stands
//! still](Consumer::with_stall_warning), with what it waits for; at level ERROR is what waits for
//! somebody: a dead letter that cannot be published (once for each record, then at WARN), and a pause
//! because of a flood. A record is named in `record` by where it stands; a copy in a retry topic has
//! its `origin` as well, by which it is followed, and a retry tells `after` which time, and in which
//! `retry_topic`, it comes again. A dead letter that has no payload is `truncated`. What librdkafka
//! logs has the target `librdkafka`.
//!
//! At the start, what is not set up safely is told at WARN: a topic that [keeps records for longer
//! than their entries](Consumer::without_retention_check) are kept, and a drain that a revoke would
//! cut.
//!
//! # Layout
//!
//! * [`Consumer`] and [`ConsumerConfig`] say how, [`Serve`] does it, and ends with a [`Summary`] or a
//!   [`ConsumerError`].
//! * `driver` decides which record is started next and what is committed. It runs on a thread of its own,
//!   over a source of records, and knows no Kafka client; a simulated source shows what it promises.
//! * `kafka` is that source over librdkafka's consumer. [`Routes`] are several services.
//! * `dead_letter` publishes what is given up, and `retry_topics` what waits; both through `publish`,
//!   which waits for acknowledgements.
//! * `transaction` commits [`Outputs`] with the offsets; a [`Publisher`] publishes outside of them.
//! * `retention` compares for how long a topic's records and their entries are kept.

mod backoff;
mod config;
mod consumer;
mod dead_letter;
mod driver;
mod error;
mod flood;
mod given_up;
mod handle;
mod health;
mod kafka;
mod log;
mod order;
mod policies;
mod publish;
mod retention;
mod retry_topics;
mod routes;
mod serve;
mod signals;
mod status;
mod summary;
mod thread;
mod transaction;

pub use self::config::ConsumerConfig;
pub use self::consumer::Consumer;
pub use self::dead_letter::{DeadLetter, HeaderStyle};
pub use self::error::ConsumerError;
pub use self::flood::FloodGuard;
pub use self::given_up::GivenUp;
pub use self::handle::{Handle, Paused};
pub use self::health::{Health, HealthService, Unhealthy};
pub use self::kafka::ToRecord;
pub use self::order::Order;
pub use self::publish::{Publisher, PublisherConfig, Refused};
pub use self::retry_topics::RetryTopics;
pub use self::routes::{NoRoute, Routes};
pub use self::serve::Serve;
pub use self::status::{PartitionStatus, Stage, Status};
pub use self::summary::Summary;
pub use self::transaction::{IntoOutputs, Outputs, OutputsReply, Transactions};
pub use campanile_core::Output;
