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
//! * [`Guard`] is the layer around a plain function.

pub use campanile_core::{
    AsyncDecode, AsyncDecodeLayer, BoxError, CarryLock, Classify, Clock, ConfigError, Coordinates,
    Decode, DecodeError, DecodeLayer, Disposition, Duplicate, FencingToken, Fingerprint,
    FingerprintHasher, Guarded, Headers, IdempotencyKey, IntoKey, KeyExtractor, Lock, LockLost,
    Lost, LostCause, Namespace, Outcome, Output, Parked, Record, RecordBuilder, Request, Timestamp,
    Unguarded, classify, decode, error, key,
};
pub use campanile_idempotency::{
    Backoff, BatchError, BatchLayer, Defaults, Exhausted, Failed, Guard, HeldLock,
    IdempotencyError, IdempotencyLayer, IdempotencyService, LockKeeper, MemoryStore, Panicked,
    ReplyCipher, ReplyCodec, ReplyTooLarge, Settled, WaitForLock, policy, reply,
};
#[cfg(feature = "kafka")]
pub use campanile_kafka::{
    Consumer, ConsumerConfig, ConsumerError, DeadLetter, FloodGuard, GivenUp, Handle, HeaderStyle,
    Health, HealthService, IntoOutputs, NoRoute, Order, Outputs, OutputsReply, PartitionStatus,
    Paused, Publisher, PublisherConfig, Refused, RetryTopics, Routes, Serve, Stage, Status,
    Summary, ToRecord, Transactions, Unhealthy,
};
#[cfg(feature = "postgres")]
pub use campanile_postgres::{PgConfig, PgStore};
#[cfg(feature = "redis")]
pub use campanile_redis::{
    ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Safety, Severity,
};

/// The transactional inbox, the schema of the Postgres store, and the errors of connecting to its server.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use campanile_postgres::{
        CarryTransaction, ConnectError, Connection, Inbox, InboxError, InboxGuard, InboxLayer,
        InboxService, Isolation, Transaction, TransactionError, migrate, tokio_postgres,
    };
}

/// The parts of a custom store: the trait, and the protocol that a store implements.
pub mod store {
    pub use campanile_core::{
        Answer, Command, Entry, Grant, Operation, Owner, Reply, Retention, State, StoreKey,
        Unreadable, limits, step,
    };
    pub use campanile_idempotency::{
        BoxStore, Cached, EntryStore, Stepped, Store, StoreError, StoreErrorKind,
    };
}

/// The items that most programs use: `use campanile::prelude::*;`.
///
/// The prelude contains only the parts of a stack around a handler. Import policies, orders and errors
/// by name from the crate's root, and `ServiceBuilder` and `Service` from `tower`.
pub mod prelude {
    #[cfg(feature = "redis")]
    pub use crate::RedisStore;
    pub use crate::{
        BoxError, CarryLock, DecodeLayer, Guard, Guarded, IdempotencyError, IdempotencyLayer, Lock,
        MemoryStore, Outcome, Record, Request, key, reply,
    };
    #[cfg(feature = "kafka")]
    pub use crate::{Consumer, ConsumerConfig};
}
