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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use campanile_core::telemetry::AttributeValue;
    use campanile_core::{Duplicate, GivenUp, IdempotencyKey};
    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// Returns the samples that are not zero, in order.
    fn samples(record: impl FnOnce()) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, record);
        let text = handle.render();
        let is_sample = |line: &&str| {
            !line.is_empty()
                && !line.ends_with(" 0")
                && !line.contains("quantile")
                && !line.starts_with('#')
        };
        let mut samples: Vec<_> = text.lines().filter(is_sample).map(ToOwned::to_owned).collect();
        samples.sort_unstable();
        samples
    }

    fn layer_samples(record: impl FnOnce(&LayerMetrics)) -> Vec<String> {
        samples(|| record(&LayerMetrics::new(&Namespace::try_from("n").expect("valid"))))
    }

    fn sample(name: &str, labels: &str, value: u64) -> String {
        format!("campanile_{name}{{campanile_namespace=\"n\",campanile_{labels}}} {value}")
    }

    #[test]
    fn every_answer_has_its_outcome() {
        let (key, at) = (IdempotencyKey::new("k").unwrap(), SystemTime::UNIX_EPOCH);
        let error = |error: IdempotencyError| Err(BoxError::from(error));
        for (answer, outcome) in [
            (Ok(Outcome::Processed(())), RequestOutcome::Processed),
            (Ok(Outcome::Duplicate(Duplicate::new(None, 1, at))), RequestOutcome::Duplicate),
            (Ok(Outcome::GivenUp(GivenUp::new(1, None))), RequestOutcome::GivenUp),
            (Ok(Outcome::WithoutLock((), WithoutLock::MissingKey)), RequestOutcome::WithoutLock),
            (error(IdempotencyError::MissingKey), RequestOutcome::MissingKey),
            (error(IdempotencyError::InvalidKey("x".into())), RequestOutcome::InvalidKey),
            (error(IdempotencyError::Mismatch { key }), RequestOutcome::Mismatch),
            (error(IdempotencyError::Store(StoreError::timeout("x"))), RequestOutcome::StoreError),
            (error(IdempotencyError::ShuttingDown), RequestOutcome::ShuttingDown),
            (Err("x".into()), RequestOutcome::ServiceError),
        ] {
            assert_eq!(request_outcome(&answer), outcome, "{answer:?}");
            let text = RequestOutcome::ATTRIBUTE.values[outcome as usize];
            let counted = layer_samples(|metrics| metrics.count_answer(&answer));
            assert_eq!(counted, [sample("requests", &format!("request_outcome=\"{text}\""), 1)]);
        }
    }

    #[test]
    fn layer_counts_drops_unguarded_runs_and_losses() {
        let dropped = layer_samples(|metrics| metrics.count_dropped());
        assert_eq!(dropped, [sample("requests", "request_outcome=\"dropped\"", 1)]);
        for (reason, text) in [
            (WithoutLock::MissingKey, "missing_key"),
            (WithoutLock::StoreUnavailable, "store_unavailable"),
        ] {
            let runs = layer_samples(|metrics| metrics.count_unguarded_run(reason));
            let expected = sample("unguarded_runs", &format!("unguarded_cause=\"{text}\""), 1);
            assert_eq!(runs, [expected]);
        }
        for (cause, text) in [
            (LostCause::Superseded, "superseded"),
            (LostCause::Expired, "expired"),
            (LostCause::MaxHold, "max_hold"),
        ] {
            let lost = layer_samples(|metrics| metrics.count_lost(cause));
            let expected = sample("locks_lost", &format!("lock_loss_cause=\"{text}\""), 1);
            assert_eq!(lost, [expected]);
        }
        let ended = layer_samples(|metrics| metrics.count_lost(LostCause::Ended));
        assert!(ended.is_empty(), "{ended:?}");
    }

    #[test]
    fn call_is_measured_once_for_each_kind_of_operation() {
        use StoreOperation::{Acquire, Renew, Settle};
        let operations = [Settle, Acquire, Settle, Renew, Acquire];
        let measured = samples(|| StoreMetrics::new().record_call(operations.into_iter(), 0.5));
        for operation in ["acquire", "renew", "settle"] {
            let labels = format!("{{campanile_store_operation=\"{operation}\"}}");
            let count = format!("campanile_store_call_duration_count{labels} 1");
            assert!(measured.contains(&count), "{count} is not in {measured:#?}");
        }
        assert!(measured.contains(&"campanile_store_batch_size_sum 5".to_owned()), "{measured:#?}");
    }

    #[test]
    fn every_error_of_a_store_has_its_type() {
        for (error, text) in [
            (StoreError::unavailable("x"), "unavailable"),
            (StoreError::timeout("x"), "timeout"),
            (StoreError::unreadable("x"), "unreadable"),
            (StoreError::overloaded("x"), "overloaded"),
            (StoreError::misconfigured("x"), "misconfigured"),
        ] {
            let counted = samples(|| StoreMetrics::new().count_error(&error));
            assert_eq!(counted, [format!("campanile_store_errors{{error_type=\"{text}\"}} 1")]);
        }
    }
}
