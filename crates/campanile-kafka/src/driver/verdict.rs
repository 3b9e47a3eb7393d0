//! Verdicts: what an error means for its record.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::{BoxError, Classify, Disposition};
use campanile_idempotency::{Defaults, Failed, IdempotencyError, Settled, StoreErrorKind};

use crate::error::chain;
use crate::given_up::Burial;

/// What to do with a record after an attempt that ended in an error.
pub(crate) enum Verdict {
    /// The attempt failed. The record is retried after this time, or after the driver's own
    /// backoff.
    Retry { after: Option<Duration> },
    /// The error says nothing about the record. It is tried again after this time, or when the
    /// holder of its key has ended.
    Wait { after: Option<Duration>, settled: Option<Settled> },
    /// The store is unavailable. No record is dispatched until it answers.
    StoreDown,
    /// No further attempt is made. The consumer's policy decides what happens to the record.
    GiveUp { burial: Burial, reason: String, help: &'static str },
    /// The record is skipped on purpose, regardless of the policy.
    Skip { burial: Burial, reason: String },
    /// The consumer stops at this record.
    Stop { burial: Burial, help: &'static str },
}

/// Judges an error: errors of the idempotency layer by their kind, all others by the classifier.
pub(crate) fn judge(error: &BoxError, classifier: &dyn Classify) -> Verdict {
    match IdempotencyError::find(&**error) {
        Some(own) => idempotency(own),
        None => other(&**error, classifier),
    }
}

fn idempotency(error: &IdempotencyError) -> Verdict {
    let wait = |after| Verdict::Wait { after, settled: None };
    match error {
        IdempotencyError::Locked { retry_after, settled, .. } => {
            Verdict::Wait { after: Some(*retry_after), settled: settled.clone() }
        }
        IdempotencyError::BackingOff { retry_after, .. } => wait(Some(*retry_after)),
        // The handler may have had its effect, and each further run may repeat it. The driver's own
        // backoff doubles, so these runs are rare where locks are lost repeatedly.
        IdempotencyError::LockLost(_) => wait(None),
        // An unreadable entry says nothing about other entries.
        IdempotencyError::Store(error) if error.kind() == StoreErrorKind::Unreadable => wait(None),
        IdempotencyError::Store(_) => Verdict::StoreDown,
        IdempotencyError::Failed(failed) => of_failed(failed),
        IdempotencyError::Exhausted(exhausted) => Verdict::GiveUp {
            burial: exhausted.take_lock().map_or(Burial::None, |lock| Burial::Exhausted {
                lock,
                burials: exhausted.burials,
            }),
            reason: exhausted.to_string(),
            help: "no attempts are left: raise the layer's `with_max_attempts` to retry the \
                   record, or pass a `DeadLetter` topic or `GivenUp::Skip` to `with_given_up`",
        },
        IdempotencyError::MissingKey
        | IdempotencyError::InvalidKey(_)
        | IdempotencyError::Mismatch { .. } => cannot_be_tried(error),
        IdempotencyError::ShuttingDown => Verdict::Stop {
            burial: Burial::None,
            help: "the lock keeper was shut down before the consumer",
        },
        // The meaning of an error that a later version adds is not known here.
        _ => wait(None),
    }
}

fn of_failed(failed: &Failed) -> Verdict {
    let burial = || failed.take_lock().map_or(Burial::None, Burial::LastAttempt);
    let reason = || chain(&*failed.source);
    match failed.disposition {
        Disposition::DeadLetter => Verdict::GiveUp {
            burial: burial(),
            reason: reason(),
            help: "the last attempt failed, or the error is permanent: fix the handler, then \
                   restart (raise the layer's `with_max_attempts` if no attempts are left), or \
                   pass a `DeadLetter` topic or `GivenUp::Skip` to `with_given_up`",
        },
        Disposition::Skip => Verdict::Skip { burial: burial(), reason: reason() },
        Disposition::Stop => {
            Verdict::Stop { burial: burial(), help: "the handler's error is classified as `Stop`" }
        }
        Disposition::Release => Verdict::Wait { after: failed.retry_after, settled: None },
        _ => Verdict::Retry { after: failed.retry_after },
    }
}

/// Judges an error of a stack without the idempotency layer, or from outside the layer.
fn other(error: &(dyn Error + 'static), classifier: &dyn Classify) -> Verdict {
    let classified = catch_unwind(AssertUnwindSafe(|| {
        classifier.classify(error).or_else(|| Defaults.classify(error))
    }));
    let Ok(disposition) = classified else {
        tracing::error!("the classifier panicked; retrying the record");
        return Verdict::Retry { after: None };
    };
    match disposition {
        Some(Disposition::DeadLetter) => cannot_be_tried(error),
        Some(Disposition::Skip) => Verdict::Skip { burial: Burial::None, reason: chain(error) },
        Some(Disposition::Stop) => Verdict::Stop {
            burial: Burial::None,
            help: "the service's error is classified as `Stop`",
        },
        Some(Disposition::Release) => Verdict::Wait { after: None, settled: None },
        Some(Disposition::Retry { after }) => Verdict::Retry { after },
        _ => Verdict::Retry { after: None },
    }
}

fn cannot_be_tried(error: &(dyn Error + 'static)) -> Verdict {
    Verdict::GiveUp {
        burial: Burial::None,
        reason: chain(error),
        help: "no attempt can succeed: fix the producer of the record, or how the record is \
               decoded and keyed, or pass a `DeadLetter` topic or `GivenUp::Skip` to \
               `with_given_up`",
    }
}

/// Returns whether the store answered before this error occurred.
pub(crate) fn asked_the_store(error: &BoxError) -> bool {
    match IdempotencyError::find(&**error) {
        Some(
            IdempotencyError::Failed(_)
            | IdempotencyError::Exhausted(_)
            | IdempotencyError::BackingOff { .. }
            | IdempotencyError::Mismatch { .. }
            | IdempotencyError::LockLost(_),
        ) => true,
        // The lock is held in this process, which is known without asking the store.
        Some(IdempotencyError::Locked { settled, .. }) => settled.is_none(),
        Some(IdempotencyError::Store(error)) => error.kind() == StoreErrorKind::Unreadable,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{FencingToken, IdempotencyKey, LockLost, LostCause, error};
    use campanile_idempotency::StoreError;

    use super::*;

    fn silent(_: &(dyn Error + 'static)) -> Option<Disposition> {
        None
    }

    fn verdict(error: impl Into<BoxError>) -> Verdict {
        judge(&error.into(), &silent)
    }

    #[test]
    fn a_store_that_does_not_answer_stops_the_dispatch_and_an_entry_that_is_unreadable_waits() {
        let store = IdempotencyError::Store;
        assert!(matches!(verdict(store(StoreError::unavailable("x"))), Verdict::StoreDown));
        assert!(matches!(verdict(store(StoreError::timeout("x"))), Verdict::StoreDown));
        let unreadable = verdict(store(StoreError::unreadable("x")));
        assert!(matches!(unreadable, Verdict::Wait { after: None, settled: None }));
    }

    #[test]
    fn a_lost_lock_waits_for_the_drivers_own_back_off() {
        let lost = LockLost {
            key: IdempotencyKey::new("p-1").unwrap(),
            token: FencingToken::new(1).unwrap(),
            cause: LostCause::Expired,
        };
        let lost = verdict(IdempotencyError::LockLost(lost));
        assert!(matches!(lost, Verdict::Wait { after: None, settled: None }));
    }

    #[test]
    fn an_error_of_the_layer_is_found_behind_others() {
        let wrapped = error::permanent(IdempotencyError::MissingKey);
        assert!(matches!(verdict(wrapped), Verdict::GiveUp { burial: Burial::None, .. }));
        let wrapped = error::permanent(IdempotencyError::ShuttingDown);
        assert!(matches!(verdict(wrapped), Verdict::Stop { .. }));
    }

    #[test]
    fn the_reason_of_a_record_that_is_given_up_has_the_errors_sources() {
        let Verdict::GiveUp { reason, .. } = verdict(error::permanent("card expired")) else {
            panic!("a permanent error gives up");
        };
        assert_eq!(reason, "permanent error: card expired");
    }

    #[test]
    fn other_errors_are_the_classifiers_first_and_then_the_markers() {
        assert!(matches!(verdict("busy"), Verdict::Retry { after: None }));
        let second = Duration::from_secs(1);
        let later = verdict(error::retry_after("busy", second));
        assert!(matches!(later, Verdict::Retry { after: Some(after) } if after == second));
        assert!(matches!(verdict(error::permanent("gone")), Verdict::GiveUp { .. }));
        let own = |_: &(dyn Error + 'static)| Some(Disposition::Skip);
        let owned = judge(&error::permanent("gone").into(), &own);
        assert!(matches!(owned, Verdict::Skip { burial: Burial::None, .. }));
    }
}
