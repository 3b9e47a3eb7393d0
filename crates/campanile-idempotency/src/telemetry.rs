//! The metrics of layers and keepers.

use campanile_core::telemetry::instruments::{self, NAMESPACE};
use campanile_core::telemetry::{
    Counter, DuplicateCause, Family, Gauge, Histogram, LockLoss, RequestOutcome, SettlementKind,
    StoreErrorType, StoreOperation, UnguardedCause,
};
use campanile_core::{BoxError, LostCause, Namespace, Outcome, WithoutLock};

use crate::error::IdempotencyError;
use crate::store::{StoreError, StoreErrorKind};

/// The metrics of one layer. Layers of the same namespace share their series.
#[derive(Debug)]
pub(crate) struct LayerMetrics {
    requests: Family<RequestOutcome, Counter>,
    pub(crate) attempts: Counter,
    pub(crate) duplicates: Family<DuplicateCause, Counter>,
    unguarded_runs: Family<UnguardedCause, Counter>,
    pub(crate) lock_waits: Histogram,
    pub(crate) locks_held: Gauge,
    locks_lost: Family<LockLoss, Counter>,
    pub(crate) settlements_refused: Family<SettlementKind, Counter>,
    pub(crate) completions_unrecorded: Gauge,
}

impl LayerMetrics {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let labels = &[(NAMESPACE, namespace.as_str())];
        Self {
            requests: Family::new(&instruments::REQUESTS, labels),
            attempts: Counter::new(&instruments::ATTEMPTS, labels),
            duplicates: Family::new(&instruments::DUPLICATES, labels),
            unguarded_runs: Family::new(&instruments::UNGUARDED_RUNS, labels),
            lock_waits: Histogram::new(&instruments::LOCK_WAITS, labels),
            locks_held: Gauge::new(&instruments::LOCKS_HELD, labels),
            locks_lost: Family::new(&instruments::LOCKS_LOST, labels),
            settlements_refused: Family::new(&instruments::SETTLEMENTS_REFUSED, labels),
            completions_unrecorded: Gauge::new(&instruments::COMPLETIONS_UNRECORDED, labels),
        }
    }

    pub(crate) fn count_answer<T>(&self, answer: &Result<Outcome<T>, BoxError>) {
        self.requests.of(request_outcome(answer)).increment(1);
    }

    /// Counts a request that was dropped while its handler ran.
    pub(crate) fn count_dropped(&self) {
        self.requests.of(RequestOutcome::Dropped).increment(1);
    }

    pub(crate) fn count_unguarded_run(&self, reason: WithoutLock) {
        let cause = match reason {
            WithoutLock::StoreUnavailable => UnguardedCause::StoreUnavailable,
            _ => UnguardedCause::MissingKey,
        };
        self.unguarded_runs.of(cause).increment(1);
    }

    /// Counts a lost lock. The end of its attempt is no loss.
    pub(crate) fn count_lost(&self, cause: LostCause) {
        let cause = match cause {
            LostCause::Superseded => LockLoss::Superseded,
            LostCause::Expired => LockLoss::Expired,
            LostCause::MaxHold => LockLoss::MaxHold,
            _ => return,
        };
        self.locks_lost.of(cause).increment(1);
    }
}

fn request_outcome<T>(answer: &Result<Outcome<T>, BoxError>) -> RequestOutcome {
    let error = match answer {
        Ok(Outcome::Processed(_)) => return RequestOutcome::Processed,
        Ok(Outcome::Duplicate(_)) => return RequestOutcome::Duplicate,
        Ok(Outcome::GivenUp(_)) => return RequestOutcome::GivenUp,
        Ok(_) => return RequestOutcome::WithoutLock,
        Err(error) => error.downcast_ref(),
    };
    match error {
        Some(IdempotencyError::MissingKey) => RequestOutcome::MissingKey,
        Some(IdempotencyError::InvalidKey(_)) => RequestOutcome::InvalidKey,
        Some(IdempotencyError::Locked { .. }) => RequestOutcome::Locked,
        Some(IdempotencyError::BackingOff { .. }) => RequestOutcome::BackingOff,
        Some(IdempotencyError::Mismatch { .. }) => RequestOutcome::Mismatch,
        Some(IdempotencyError::Exhausted(_)) => RequestOutcome::Exhausted,
        Some(IdempotencyError::AttemptFailed(_)) => RequestOutcome::AttemptFailed,
        Some(IdempotencyError::LockLost(_)) => RequestOutcome::LockLost,
        Some(IdempotencyError::Store(_)) => RequestOutcome::StoreError,
        Some(IdempotencyError::ShuttingDown) => RequestOutcome::ShuttingDown,
        None => RequestOutcome::ServiceError,
    }
}

/// The metrics of a keeper's calls to its store.
#[derive(Debug)]
pub(crate) struct StoreMetrics {
    calls: Family<StoreOperation, Histogram>,
    batches: Histogram,
    errors: Family<StoreErrorType, Counter>,
}

impl StoreMetrics {
    pub(crate) fn new() -> Self {
        Self {
            calls: Family::new(&instruments::STORE_CALLS, &[]),
            batches: Histogram::new(&instruments::STORE_BATCHES, &[]),
            errors: Family::new(&instruments::STORE_ERRORS, &[]),
        }
    }

    /// Records a call with these operations, one for each command.
    pub(crate) fn record_call(
        &self,
        operations: impl ExactSizeIterator<Item = StoreOperation>,
        seconds: f64,
    ) {
        self.batches.record(operations.len() as f64);
        let mut seen = 0_u8;
        for operation in operations {
            let bit = 1 << operation as u8;
            if seen & bit == 0 {
                seen |= bit;
                self.calls.of(operation).record(seconds);
            }
        }
    }

    pub(crate) fn count_error(&self, error: &StoreError) {
        let kind = match error.kind() {
            StoreErrorKind::Unavailable => StoreErrorType::Unavailable,
            StoreErrorKind::Timeout => StoreErrorType::Timeout,
            StoreErrorKind::Unreadable => StoreErrorType::Unreadable,
            StoreErrorKind::Overloaded => StoreErrorType::Overloaded,
            StoreErrorKind::Misconfigured => StoreErrorType::Misconfigured,
        };
        self.errors.of(kind).increment(1);
    }
}
