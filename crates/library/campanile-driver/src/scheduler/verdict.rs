//! Verdicts: what an error means for its record.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::{BoxError, Classify, DecodeError, Disposition, error};
use campanile_idempotency::{
    AttemptFailed, Defaults, IdempotencyError, SettledFuture, StoreErrorKind,
};

use crate::epilogue::GiveUpLock;
use crate::error::chain;

/// Says what to do about a record that is given up, from its literal cause and remedy.
macro_rules! give_up_help {
    ($cause:literal) => {
        concat!(
            $cause,
            "; or let this record pass with `Consumer::skip_at`; or set `on_give_up` to a \
             `DeadLetter` topic or `OnGiveUp::Skip`"
        )
    };
}

/// What to do with a record after an attempt that ended in an error.
pub(crate) enum Verdict {
    /// The attempt failed. The record is retried after this time, or after the driver's own
    /// backoff.
    Retry { after: Option<Duration> },
    /// The error says nothing about the record. It is tried again after this time, or when the
    /// holder of its key has ended.
    Wait { after: Option<Duration>, settled: Option<SettledFuture> },
    /// The store is unavailable. No record is dispatched until it answers.
    StoreUnavailable,
    /// A dependency of the handler is unavailable. The record waits until it is available again.
    Unavailable { dependency: Option<&'static str> },
    /// No further attempt is made. The consumer's policy decides what happens to the record.
    GiveUp { giving_up: GiveUpLock, reason: String, help: &'static str },
    /// The record is skipped on purpose, regardless of the policy.
    Skip { giving_up: GiveUpLock, reason: String },
    /// The consumer stops at this record.
    Stop { giving_up: GiveUpLock, help: &'static str },
}

/// Chooses the verdict for an error: errors of the idempotency layer by their kind, all others by
/// the classifier.
pub(crate) fn verdict_for(error: &BoxError, classifier: &dyn Classify) -> Verdict {
    match IdempotencyError::find(&**error) {
        Some(own) => layer_verdict(own),
        None => other_verdict(&**error, classifier),
    }
}

fn layer_verdict(error: &IdempotencyError) -> Verdict {
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
        IdempotencyError::Store(error) if error.kind() == StoreErrorKind::Misconfigured => {
            Verdict::Stop {
                giving_up: GiveUpLock::None,
                help: "correct the store's configuration, and start again",
            }
        }
        IdempotencyError::Store(_) => Verdict::StoreUnavailable,
        IdempotencyError::AttemptFailed(failed) => failed_verdict(failed),
        IdempotencyError::Exhausted(exhausted) => Verdict::GiveUp {
            giving_up: exhausted.take_lock().map_or(GiveUpLock::None, |lock| {
                GiveUpLock::Exhausted { lock, give_ups: exhausted.give_ups }
            }),
            reason: exhausted.to_string(),
            help: give_up_help!(
                "no attempts are left: fix the handler, raise `IdempotencyConfig::with_max_attempts` or \
                 reopen the key with `campanile reopen --force`, then restart"
            ),
        },
        IdempotencyError::MissingKey
        | IdempotencyError::InvalidKey(_)
        | IdempotencyError::Mismatch { .. } => untried_verdict(error),
        IdempotencyError::ShuttingDown => Verdict::Stop {
            giving_up: GiveUpLock::None,
            help: "the lock keeper was shut down before the consumer",
        },
        // The meaning of an error that a later version adds is not known here.
        _ => wait(None),
    }
}

fn failed_verdict(failed: &AttemptFailed) -> Verdict {
    let giving_up = || failed.take_lock().map_or(GiveUpLock::None, GiveUpLock::LastAttempt);
    let reason = || chain(&*failed.source);
    match failed.disposition {
        Disposition::DeadLetter => Verdict::GiveUp {
            giving_up: giving_up(),
            reason: reason(),
            help: give_up_help!(
                "the last attempt failed, or the error is permanent: fix the handler, then restart \
                 (raise `IdempotencyConfig::with_max_attempts` if no attempts are left)"
            ),
        },
        Disposition::Skip => Verdict::Skip { giving_up: giving_up(), reason: reason() },
        Disposition::Stop => Verdict::Stop {
            giving_up: giving_up(),
            help: "the handler's error is classified as `Stop`",
        },
        Disposition::Release => Verdict::Wait { after: failed.retry_after, settled: None },
        Disposition::Unavailable { dependency } => Verdict::Unavailable { dependency },
        _ => Verdict::Retry { after: failed.retry_after },
    }
}

/// Chooses the verdict for an error of a stack without the idempotency layer, or from outside the
/// layer.
fn other_verdict(error: &(dyn Error + 'static), classifier: &dyn Classify) -> Verdict {
    let classified = catch_unwind(AssertUnwindSafe(|| {
        classifier.classify(error).or_else(|| Defaults.classify(error))
    }));
    let Ok(disposition) = classified else {
        tracing::error!("the classifier panicked; retrying the record");
        return Verdict::Retry { after: None };
    };
    match disposition {
        Some(Disposition::DeadLetter) => untried_verdict(error),
        Some(Disposition::Skip) => {
            Verdict::Skip { giving_up: GiveUpLock::None, reason: chain(error) }
        }
        Some(Disposition::Stop) => Verdict::Stop {
            giving_up: GiveUpLock::None,
            help: "the service's error is classified as `Stop`",
        },
        Some(Disposition::Release) => Verdict::Wait { after: None, settled: None },
        Some(Disposition::Unavailable { dependency }) => Verdict::Unavailable { dependency },
        Some(Disposition::Retry { after }) => Verdict::Retry { after },
        _ => Verdict::Retry { after: None },
    }
}

fn untried_verdict(error: &(dyn Error + 'static)) -> Verdict {
    Verdict::GiveUp {
        giving_up: GiveUpLock::None,
        reason: chain(error),
        help: give_up_help!(
            "no attempt can succeed: fix the producer of the record, or how the record is decoded \
             and keyed, then restart"
        ),
    }
}

/// Checks whether the handler has got further than what it depends on: it has decided that the record is not to be
/// tried again. Any other error may be that of a dependency, and a record that does not decode reaches no handler.
pub(crate) fn has_passed(error: &BoxError, verdict: &Verdict) -> bool {
    let is_decision = matches!(verdict, Verdict::GiveUp { .. } | Verdict::Skip { .. });
    let has_run = match IdempotencyError::find(&**error) {
        Some(own) => matches!(own, IdempotencyError::AttemptFailed(_)),
        None => error::find::<DecodeError>(&**error).is_none(),
    };
    is_decision && has_run
}

/// Checks whether the store answered before this error occurred.
pub(crate) fn store_answered(error: &BoxError) -> bool {
    match IdempotencyError::find(&**error) {
        Some(
            IdempotencyError::AttemptFailed(_)
            | IdempotencyError::Exhausted(_)
            | IdempotencyError::BackingOff { .. }
            | IdempotencyError::Mismatch { .. }
            | IdempotencyError::LockLost(_),
        ) => true,
        // The lock is held in this process, which is known without asking the store.
        Some(IdempotencyError::Locked { settled, .. }) => settled.is_none(),
        Some(IdempotencyError::Store(error)) => {
            matches!(error.kind(), StoreErrorKind::Unreadable | StoreErrorKind::Misconfigured)
        }
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
        verdict_for(&error.into(), &silent)
    }

    #[test]
    fn verdict_of_store_error_depends_on_its_kind() {
        let store = IdempotencyError::Store;
        assert!(matches!(verdict(store(StoreError::unavailable("x"))), Verdict::StoreUnavailable));
        assert!(matches!(verdict(store(StoreError::timeout("x"))), Verdict::StoreUnavailable));
        let unreadable = verdict(store(StoreError::unreadable("x")));
        assert!(matches!(unreadable, Verdict::Wait { after: None, settled: None }));
        let misconfigured = verdict(store(StoreError::misconfigured("x")));
        assert!(matches!(misconfigured, Verdict::Stop { giving_up: GiveUpLock::None, .. }));
    }

    #[test]
    fn lost_lock_waits_for_the_driver_backoff() {
        let lost = LockLost {
            key: IdempotencyKey::new("p-1").unwrap(),
            token: FencingToken::new(1).unwrap(),
            cause: LostCause::Expired,
        };
        let lost = verdict(IdempotencyError::LockLost(lost));
        assert!(matches!(lost, Verdict::Wait { after: None, settled: None }));
    }

    #[test]
    fn wrapped_layer_error_is_found() {
        let wrapped = error::permanent(IdempotencyError::MissingKey);
        assert!(matches!(verdict(wrapped), Verdict::GiveUp { giving_up: GiveUpLock::None, .. }));
        let wrapped = error::permanent(IdempotencyError::ShuttingDown);
        assert!(matches!(verdict(wrapped), Verdict::Stop { .. }));
    }

    #[test]
    fn give_up_reason_includes_error_sources() {
        let Verdict::GiveUp { reason, .. } = verdict(error::permanent("card expired")) else {
            panic!("a permanent error gives up");
        };
        assert_eq!(reason, "permanent error: card expired");
    }

    #[test]
    fn classifier_precedes_markers_for_other_errors() {
        assert!(matches!(verdict("busy"), Verdict::Retry { after: None }));
        let second = Duration::from_secs(1);
        let later = verdict(error::retry_after("busy", second));
        assert!(matches!(later, Verdict::Retry { after: Some(after) } if after == second));
        assert!(matches!(verdict(error::permanent("gone")), Verdict::GiveUp { .. }));
        let own = |_: &(dyn Error + 'static)| Some(Disposition::Skip);
        let owned = verdict_for(&error::permanent("gone").into(), &own);
        assert!(matches!(owned, Verdict::Skip { giving_up: GiveUpLock::None, .. }));
    }
}
