//! What an error means for its record.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::{BoxError, Classify, Disposition};
use campanile_idempotency::{Defaults, Failed, IdempotencyError, Settled, StoreErrorKind};

use crate::error::chain;
use crate::given_up::Burial;

/// What is to be done with a record whose attempt ended in an error.
pub(crate) enum Verdict {
    /// The attempt failed. Again after this time, or after the driver's own back-off.
    Retry { after: Option<Duration> },
    /// It says nothing about the record. Again after this time, or when the holder has ended.
    Wait { after: Option<Duration>, settled: Option<Settled> },
    /// The store is down: nothing is dispatched until it answers.
    StoreDown,
    /// No further attempt.
    GiveUp { burial: Burial, reason: String, help: &'static str },
    /// Given up on purpose, whatever the policy.
    Skip { burial: Burial, reason: String },
    /// The consumer stops here.
    Stop { burial: Burial, help: &'static str },
}

/// Judges an error: the layer's own by what it says, any other by the classifier.
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
        // Its handler may have had its effect, and each further run may repeat it: the driver's own
        // back-off, which doubles, makes these runs rare where locks are lost again and again.
        IdempotencyError::LockLost(_) => wait(None),
        // One entry that cannot be read says nothing about the others.
        IdempotencyError::Store(error) if error.kind() == StoreErrorKind::Unreadable => wait(None),
        IdempotencyError::Store(_) => Verdict::StoreDown,
        IdempotencyError::Failed(failed) => of_failed(failed),
        IdempotencyError::Exhausted(exhausted) => Verdict::GiveUp {
            burial: exhausted.take_lock().map_or(Burial::None, |lock| Burial::Exhausted {
                lock,
                burials: exhausted.burials,
            }),
            reason: exhausted.to_string(),
            help: "no attempt is left: raise the layer's `with_max_attempts` to try it again, or \
                   give `with_given_up` a `DeadLetter` topic, or `GivenUp::Skip`",
        },
        IdempotencyError::MissingKey
        | IdempotencyError::InvalidKey(_)
        | IdempotencyError::Mismatch { .. } => cannot_be_tried(error),
        IdempotencyError::ShuttingDown => Verdict::Stop {
            burial: Burial::None,
            help: "the lock keeper was shut down before the consumer",
        },
        // An error of a later version says nothing about the record that we could know.
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
            help: "its last attempt failed, or its error is permanent: mend the handler and start \
                   again, with a higher `with_max_attempts` of the layer if none is left, or give \
                   `with_given_up` a `DeadLetter` topic, or `GivenUp::Skip`",
        },
        Disposition::Skip => Verdict::Skip { burial: burial(), reason: reason() },
        Disposition::Stop => {
            Verdict::Stop { burial: burial(), help: "the handler's error says so" }
        }
        Disposition::Release => Verdict::Wait { after: failed.retry_after, settled: None },
        _ => Verdict::Retry { after: failed.retry_after },
    }
}

/// An error of a stack without the layer, or from outside of it.
fn other(error: &(dyn Error + 'static), classifier: &dyn Classify) -> Verdict {
    let classified = catch_unwind(AssertUnwindSafe(|| {
        classifier.classify(error).or_else(|| Defaults.classify(error))
    }));
    let Ok(disposition) = classified else {
        tracing::error!("the classifier panicked, which is taken as retry");
        return Verdict::Retry { after: None };
    };
    match disposition {
        Some(Disposition::DeadLetter) => cannot_be_tried(error),
        Some(Disposition::Skip) => Verdict::Skip { burial: Burial::None, reason: chain(error) },
        Some(Disposition::Stop) => {
            Verdict::Stop { burial: Burial::None, help: "the service's error says so" }
        }
        Some(Disposition::Release) => Verdict::Wait { after: None, settled: None },
        Some(Disposition::Retry { after }) => Verdict::Retry { after },
        _ => Verdict::Retry { after: None },
    }
}

fn cannot_be_tried(error: &(dyn Error + 'static)) -> Verdict {
    Verdict::GiveUp {
        burial: Burial::None,
        reason: chain(error),
        help: "no attempt would mend it: correct what produces the record, or how it is decoded \
               and keyed, or give `with_given_up` a `DeadLetter` topic, or `GivenUp::Skip`",
    }
}

/// Whether the store has answered on the way to this error.
pub(crate) fn asked_the_store(error: &BoxError) -> bool {
    match IdempotencyError::find(&**error) {
        Some(
            IdempotencyError::Failed(_)
            | IdempotencyError::Exhausted(_)
            | IdempotencyError::BackingOff { .. }
            | IdempotencyError::Mismatch { .. }
            | IdempotencyError::LockLost(_),
        ) => true,
        // Held in this process, that is known without asking.
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
