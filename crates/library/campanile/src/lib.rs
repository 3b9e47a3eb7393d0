//! Idempotent Kafka consumers: a tower middleware and a consumer driver.
//!
//! Kafka delivers records at least once. After a crash, a rebalance or a producer's retry, a handler
//! runs again for the same event. [`IdempotencyLayer`] around the handler extracts the event's
//! idempotency key, acquires a lock for the key, renews the lock while the handler runs, stores the
//! outcome in an *entry*, and answers every later duplicate from the entry. [`Consumer`] calls
//! the resulting service with Kafka records, and commits the offsets of finished records only.
//!
//! ```no_run
//! use campanile::prelude::*;
//! use campanile::{Consumer, Request};
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//!
//! #[derive(serde::Deserialize)]
//! struct Payment { id: String, cents: u64 }
//!
//! async fn charge(request: Request<Payment>) -> Result<(), BoxError> {
//!     println!("charging {} cents", request.body().cents);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), BoxError> {
//!     let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//!     let service = ServiceBuilder::new()
//!         // a record that does not decode never acquires a lock
//!         .layer(DecodeLayer::json())
//!         // one lock per payment, renewed while the handler runs
//!         .layer(IdempotencyLayer::new(store, "billing.payments", key::field(|p: &Payment| &p.id))?)
//!         // a handler that takes longer counts as a failed attempt
//!         .timeout(Duration::from_secs(10))
//!         .service_fn(charge);
//!     Consumer::new(ConsumerConfig::new("127.0.0.1:9092", "billing"))?
//!         .subscribe(["payments"])
//!         .serve(service)
//!         // shut down gracefully on SIGTERM or Ctrl-C, and immediately on a second signal
//!         .with_shutdown_signals()
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! The [`guide`] has a page for each topic: [keys](guide::keys), [locks](guide::locks),
//! [retries and dead letters](guide::retries_and_dead_letters), [Redis](guide::redis_in_production) and
//! [Postgres](guide::postgres_in_production) in production, [testing](guide::testing), and others. Its
//! [glossary](guide::glossary) explains the terms. In the repository, `docs/guarantees.md` states what
//! holds in each failure, and `docs/troubleshooting.md` explains each event in the log.
//!
//! # Layout
//!
//! * [`DecodeLayer`], [`IdempotencyLayer`] and their parts ([`key`], [`policy`], [`reply`], [`classify`])
//!   form the tower stack, which returns an [`Outcome`] or an [`IdempotencyError`].
//! * [`handler()`] creates the inner service from an async function and the program's state.
//! * [`Consumer`] passes records to the stack and commits the offsets of those that are finished:
//!   answered with `Ok`, skipped, dead-lettered, or copied to a retry topic.
//! * [`MemoryStore`], [`RedisStore`] and [`PgStore`] keep the entries, and so does the crate
//!   `campanile-dynamodb`; [`store`] has the trait for custom stores.
//! * [`postgres::Inbox`] commits a handler's writes to Postgres together with its entry, and with
//!   messages to Kafka, which a [`Publisher`] publishes.
//! * [`Runner`] applies the layer to a plain function.
//! * [`ObserveLayer`] and [`Observer`] report what the layer would do in an existing consumer, and change
//!   nothing.
//!
//! # Features
//!
//! | feature | contents | requires |
//! |---|---|---|
//! | `kafka` (default) | the consumer driver, with librdkafka | `make`, a C and a C++ compiler |
//! | `kafka-tls` | TLS and SCRAM to the brokers, by OpenSSL | OpenSSL's headers (`libssl-dev` on Debian) |
//! | `kafka-zstd` | topics compressed by zstd; the other codecs are always included | |
//! | `metrics` | [`metrics`] for the recorders of the crate [`metrics`](https://docs.rs/metrics) | |
//! | `serde` | settings of the layer and of the stores from a configuration file | |
//! | `uuid` | `uuid::Uuid` as a key, and `IdempotencyKey::now_v7` | |
//! | `redis` (default) | [`RedisStore`] | |
//! | `redis-tls` | TLS to Redis (`rediss://`), by rustls | |
//! | `postgres` | [`PgStore`], [`postgres::Inbox`] | |
//! | `postgres-tls` | TLS to Postgres, by rustls | |
//! | `full` | all of them | as above |

// The documentation links to the items of every feature.
#![cfg_attr(
    not(all(feature = "kafka", feature = "postgres", feature = "redis")),
    allow(rustdoc::broken_intra_doc_links)
)]

#[doc(no_inline)]
pub use bytes;
#[cfg(feature = "kafka")]
#[doc(no_inline)]
pub use campanile_kafka::{rdkafka, tracing};
#[doc(no_inline)]
pub use http;

pub use campanile_core::{
    BoxError, CarryLock, Classify, ConfigError, DecodeLayer, Disposition, FencingToken, Handler,
    IdempotencyKey, IntoKey, KeyExtractor, Locate, LockHandle, Outcome, Record, Request, WithLock,
    classify, decode, handler,
};
pub use campanile_idempotency::{
    Backoff, BatchLayer, IdempotencyConfig, IdempotencyError, IdempotencyLayer, IdempotencyService,
    LockKeeper, MemoryStore, ObserveFuture, ObserveLayer, ObserveService, Observer, Runner,
    WaitForLock, policy, reply,
};
#[cfg(feature = "kafka")]
pub use campanile_kafka::{
    Consumer, ConsumerConfig, ConsumerError, DeadLetter, Handle, OnGiveUp, Output, Outputs,
    ProcessingOrder, Publisher, RetryTopics, Routes, Transactions,
};
#[cfg(feature = "postgres")]
pub use campanile_postgres::{PgConfig, PgStore};
#[cfg(feature = "redis")]
pub use campanile_redis::{RedisConfig, RedisStore};

/// A batch of requests for one call of the handler.
pub mod batch {
    pub use campanile_idempotency::{BatchError, BatchFuture, BatchLayer, BatchService};
}

/// The consumer: its configuration, its status, and the handle that controls it.
#[cfg(feature = "kafka")]
pub mod consumer {
    pub use campanile_kafka::{
        Consumer, ConsumerConfig, ConsumerError, ConsumerStage, Handle, NoRoute, OauthToken,
        OnGiveUp, PartitionStatus, Paused, ProcessingOrder, Rebalance, Rebalances, RetryTopics,
        Routes, SeekError, SeekTo, Serve, SkipAt, Status, StoppedPartition, Summary,
        TopicPartition, UnavailableDependency,
    };
}

/// Dead-letter topics.
#[cfg(feature = "kafka")]
pub mod dead_letter {
    pub use campanile_kafka::{DeadLetter, FloodLimit, InvalidLetter, LetterHeaders, LetterLock};
}

/// Errors: those of the layer, and the markers with which a handler says what to do.
pub mod error {
    pub use campanile_core::error::*;
    pub use campanile_idempotency::{
        AttemptFailed, Defaults, Exhausted, IdempotencyError, Panicked, ReplyTooLarge,
    };
}

pub mod guide;

/// Liveness and readiness of a consumer.
#[cfg(feature = "kafka")]
pub mod health {
    pub use campanile_kafka::{Health, HealthService, Unhealthy};
}

/// Idempotency keys: where they come from, and how a key's payload is compared.
pub mod key {
    pub use campanile_core::key::*;
    pub use campanile_core::{Fingerprint, FingerprintHasher, Namespace};
}

/// Locks: as a handler sees them, as an error returns them, and the keeper that renews them.
pub mod lock {
    pub use campanile_core::{
        CarryLock, Clock, FencingToken, LockHandle, LockLost, LostCause, LostFuture, StepError,
        WithLock,
    };
    pub use campanile_idempotency::{
        HeldLock, IntoKeeper, LockKeeper, SettledFuture, Settling, ShutdownReport,
    };
}

/// The definitions of all metrics, and the buckets of the histograms; see [the guide](guide::observability#metrics).
pub mod metrics {
    pub use campanile_core::telemetry::{
        Attribute, INSTRUMENTS, Instrument, InstrumentKind, buckets,
    };
}

/// The response of the layer.
pub mod outcome {
    pub use campanile_core::{Duplicate, GivenUp, Outcome, WithoutLock};
}

/// The Postgres store, the transactional inbox and outbox, and the schema of both.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use campanile_postgres::{
        CarryTransaction, ConnectError, Connection, Finding, FindingKind, Inbox, InboxError,
        InboxLayer, InboxRunner, InboxService, PgConfig, PgStore, Transaction, TransactionError,
        migrate, schema_version, tokio_postgres,
    };
}

/// Messages that are published with an acknowledgment.
#[cfg(feature = "kafka")]
pub mod publish {
    pub use campanile_kafka::{Output, PublishError, Publisher, PublisherConfig};
}

/// Kafka records.
pub mod record {
    pub use campanile_core::{
        Coordinates, Headers, Parts, Record, RecordBuilder, Request, Timestamp,
    };
    #[cfg(feature = "kafka")]
    pub use campanile_kafka::ToRecord;
}

/// The Redis store, and what it finds out about its servers.
#[cfg(feature = "redis")]
pub mod redis {
    pub use campanile_redis::{
        ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Safety, Severity,
    };
}

/// The parts of a custom store: the trait, and the protocol that a store implements.
pub mod store {
    pub use campanile_core::{
        Answer, Command, Details, DetailsBuilder, Entry, ExpireOutcome, Grant, Operation, Owner,
        Reply, Retention, State, Steps, StoreKey, TraceContext, Unreadable, expire, limits, step,
    };
    pub use campanile_idempotency::{
        EntryStore, ExpireStore, Found, InspectStore, Inspection, MemoryStore, ScanCursor,
        ScanFilter, ScanPage, Stepped, Store, StoreError, StoreErrorKind,
    };
}

/// Distributed traces: their context, and the tracing system that continues them.
pub mod trace {
    pub use campanile_core::trace::{TraceContext, Tracer, set_tracer};
}

/// Kafka transactions: the outputs of a handler and the offset of its record are committed together.
#[cfg(feature = "kafka")]
pub mod transaction {
    pub use campanile_kafka::{IntoOutputs, Output, Outputs, OutputsCodec, Transactions};
}

/// The items that most programs use: `use campanile::prelude::*;`.
///
/// The prelude contains only the parts of a tower stack with names that no other crate is
/// likely to use. Import [`Consumer`], [`Request`], policies and
/// errors by name, and `ServiceBuilder` and `Service` from `tower`.
pub mod prelude {
    #[cfg(feature = "kafka")]
    pub use crate::ConsumerConfig;
    #[cfg(feature = "redis")]
    pub use crate::RedisStore;
    pub use crate::{
        BoxError, CarryLock, DecodeLayer, IdempotencyConfig, IdempotencyError, IdempotencyLayer,
        LockHandle, MemoryStore, Outcome, Record, Runner, WithLock, key, reply,
    };
}
