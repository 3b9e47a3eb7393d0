#![doc = include_str!("manual.md")]
//! # Layout
//!
//! * [`DecodeLayer`], [`IdempotencyLayer`] and what they need ([`key`], [`policy`], [`reply`],
//!   [`classify`]) make the tower stack; [`Outcome`] and [`IdempotencyError`] come out of it.
//! * [`Consumer`] feeds records in and commits on `Ok`.
//! * [`MemoryStore`] and [`RedisStore`] keep the entries, or, with the feature `postgres`, `PgStore`;
//!   [`store`] has the trait for one's own.
//! * `postgres::Inbox` commits what a handler writes in Postgres together with its entry, also messages for
//!   Kafka, which a [`Publisher`] publishes.
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

/// The transactional inbox, the schema of the Postgres store, and what can be wrong with its server.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use campanile_postgres::{
        CarryTransaction, ConnectError, Connection, Inbox, InboxError, InboxGuard, InboxLayer,
        InboxService, Isolation, Transaction, TransactionError, migrate, tokio_postgres,
    };
}

/// What a store of one's own needs: the trait, and the protocol that it runs.
pub mod store {
    pub use campanile_core::{
        Answer, Command, Entry, Grant, Operation, Owner, Reply, Retention, State, StoreKey,
        Unreadable, limits, step,
    };
    pub use campanile_idempotency::{
        BoxStore, Cached, EntryStore, Stepped, Store, StoreError, StoreErrorKind,
    };
}

/// What most programs use: `use campanile::prelude::*;`.
///
/// It has what a stack around a handler is made of, and no more: a policy, an order or an error that
/// one chooses is imported by its name from the crate's root, and `ServiceBuilder` and `Service` come
/// from `tower`.
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
