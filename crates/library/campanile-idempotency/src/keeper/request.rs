//! The requests to the keeper, and its answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use campanile_core::key::DerivationSecret;
use campanile_core::telemetry::{DuplicateCause, SettlementKind};
use campanile_core::{
    Completion, Coordinates, Details, Fingerprint, IdempotencyKey, Interrupt, LockLost, Namespace,
    Owner, Record, Retention, StoreKey, TraceContext,
};
use tokio::sync::oneshot;

use super::{HeldLock, SettledFuture};
use crate::store::StoreError;
use crate::telemetry::LayerMetrics;

/// The settings of a layer that the keeper needs.
#[derive(Debug)]
pub(crate) struct LockSettings {
    pub(crate) ttl: Duration,
    pub(crate) max_attempts: u16,
    pub(crate) max_hold: Duration,
    pub(crate) retention: Retention,
    /// Whether the entry's details contain the idempotency key.
    pub(crate) store_keys: bool,
    /// Whether the entry contains the texts of errors.
    pub(crate) store_errors: bool,
    /// Whether a COMPLETED entry keeps its details.
    pub(crate) keep_details: bool,
    pub(crate) derivation_secret: Option<DerivationSecret>,
    pub(crate) metrics: LayerMetrics,
}

/// The key of a lock, as the application and as the store know it.
#[derive(Clone, Debug)]
pub(crate) struct LockKey {
    pub(crate) idempotency_key: IdempotencyKey,
    pub(crate) store_key: StoreKey,
}

impl LockKey {
    pub(crate) fn new(namespace: Namespace, idempotency_key: IdempotencyKey) -> Self {
        Self { store_key: StoreKey::new(namespace, &idempotency_key), idempotency_key }
    }
}

/// Where a run takes place, for the details of its entry.
#[derive(Debug, Default)]
pub(crate) struct RunSite {
    pub(crate) coordinates: Option<Coordinates>,
    pub(crate) trace: Option<TraceContext>,
}

impl RunSite {
    /// The site of a run for this record, in the current trace or else in that of the record.
    pub(crate) fn of(record: Option<&Record>) -> Self {
        let of_record = || TraceContext::from_headers(record?.headers());
        Self {
            coordinates: record.map(|record| record.coordinates().clone()),
            trace: TraceContext::current().or_else(of_record),
        }
    }
}

/// A request for a lock.
#[derive(Debug)]
pub(super) struct AcquireRequest {
    pub(super) key: LockKey,
    /// Drawn for this acquisition only; a repeated command reuses it.
    pub(super) owner: Owner,
    pub(super) settings: Arc<LockSettings>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) details: Details,
    /// Kept until nothing is left to send to the store for the request.
    pub(super) interrupt: Option<Interrupt>,
    pub(super) reply: oneshot::Sender<Acquisition>,
}

/// The outcome of an acquire.
#[derive(Debug)]
pub(crate) enum Acquisition {
    Held(HeldLock),
    Exhausted {
        lock: HeldLock,
        attempts: u32,
        give_ups: u32,
        last_error: Option<Box<str>>,
    },
    Duplicate {
        reply: Option<Bytes>,
        attempts: u32,
        completed_at: SystemTime,
        details: Option<Details>,
        cause: DuplicateCause,
        /// The time since the completion, by the store's clock.
        age: Duration,
    },
    AlreadyGivenUp {
        attempts: u32,
        reason: Option<Box<str>>,
    },
    Locked {
        retry_after: Duration,
        settled: Option<SettledFuture>,
    },
    BackingOff {
        retry_after: Duration,
        attempts: u32,
    },
    Mismatch,
    Unavailable(StoreError),
    ShuttingDown,
}

/// How a grant ends.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    Complete {
        reply: Option<Bytes>,
    },
    Fail {
        delay: Duration,
        last: bool,
        error: Box<str>,
    },
    Release {
        ran: bool,
    },
    GiveUp {
        reason: Box<str>,
    },
    /// Sends nothing: the entry was already completed, together with the handler's effect.
    Completed(Completion),
    /// Sends nothing: the lock expires, or is already lost.
    Expire,
}

impl Settlement {
    /// Returns the kind of the command, if one is sent.
    pub(super) fn kind(&self) -> Option<SettlementKind> {
        Some(match self {
            Self::Complete { .. } => SettlementKind::Complete,
            Self::Fail { .. } => SettlementKind::Fail,
            Self::Release { .. } => SettlementKind::Release,
            Self::GiveUp { .. } => SettlementKind::GiveUp,
            Self::Completed(_) | Self::Expire => return None,
        })
    }
}

/// Whether the grant ended as requested.
pub(crate) type SettleResult = Result<(), SettleError>;

/// The reason why a grant did not end as requested.
#[derive(Debug)]
pub(crate) enum SettleError {
    /// The entry belongs to another grant, or this grant had already ended differently.
    Lost(LockLost),
    /// The store will not change the entry, because the entry cannot be read or found.
    Store(StoreError),
}
