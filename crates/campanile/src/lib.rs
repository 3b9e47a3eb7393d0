#![doc = include_str!("manual.md")]
//! # Layout
//!
//! * [`DecodeLayer`], [`IdempotencyLayer`] and their parts ([`key`], [`policy`], [`reply`], [`classify`])
//!   form the tower stack, which returns an [`Outcome`] or an [`IdempotencyError`].
//! * [`Consumer`] feeds records into the stack and commits the offsets of those that are finished:
//!   answered with `Ok`, skipped, dead-lettered, or copied to a retry topic.
//! * [`MemoryStore`] and [`RedisStore`] keep the entries or, with the feature `postgres`, `PgStore`;
//!   [`store`] has the trait for custom stores.
//! * `postgres::Inbox` commits a handler's writes to Postgres together with its entry, including messages
//!   to Kafka, which a [`Publisher`] publishes.
//! * [`Runner`] is the layer around a plain function.

#[doc(no_inline)]
pub use bytes;
#[cfg(feature = "kafka")]
#[doc(no_inline)]
pub use campanile_kafka::{rdkafka, tracing};
#[doc(no_inline)]
pub use http;

pub use campanile_core::{
    BoxError, CarryLock, Classify, ConfigError, DecodeLayer, Disposition, FencingToken,
    IdempotencyKey, IntoKey, KeyExtractor, LockHandle, Outcome, Record, Request, WithLock,
    classify, decode,
};
pub use campanile_idempotency::{
    Backoff, BatchLayer, IdempotencyConfig, IdempotencyError, IdempotencyLayer, IdempotencyService,
    LockKeeper, MemoryStore, Runner, WaitForLock, policy, reply,
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
        Consumer, ConsumerConfig, ConsumerError, ConsumerStage, Handle, NoRoute, OnGiveUp,
        PartitionStatus, Paused, ProcessingOrder, RetryTopics, Routes, Serve, Status, Summary,
    };
}

/// Dead-letter topics.
#[cfg(feature = "kafka")]
pub mod dead_letter {
    pub use campanile_kafka::{DeadLetter, FloodLimit, HeaderStyle};
}

/// Errors: those of the layer, and the markers with which a handler says what to do.
pub mod error {
    pub use campanile_core::error::*;
    pub use campanile_idempotency::{
        AttemptFailed, Defaults, Exhausted, IdempotencyError, Panicked, ReplyTooLarge,
    };
}

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
        CarryLock, Clock, FencingToken, LockHandle, LockLost, LostCause, LostFuture, WithLock,
    };
    pub use campanile_idempotency::{
        HeldLock, IntoKeeper, LockKeeper, SettledFuture, Settling, ShutdownReport,
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
        CarryTransaction, ConnectError, Connection, Inbox, InboxError, InboxLayer, InboxRunner,
        InboxService, Isolation, PgConfig, PgStore, Transaction, TransactionError, migrate,
        tokio_postgres,
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
        Answer, Command, Entry, Grant, Operation, Owner, Reply, Retention, State, StoreKey,
        Unreadable, limits, step,
    };
    pub use campanile_idempotency::{
        BoxStore, Cached, EntryStore, MemoryStore, Stepped, Store, StoreError, StoreErrorKind,
    };
}

/// Kafka transactions: the outputs of a handler and the offset of its record are committed together.
#[cfg(feature = "kafka")]
pub mod transaction {
    pub use campanile_kafka::{IntoOutputs, Output, Outputs, OutputsCodec, Transactions};
}

/// The items that most programs use: `use campanile::prelude::*;`.
///
/// The prelude contains only the parts of a stack around a handler whose names no other crate is
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
