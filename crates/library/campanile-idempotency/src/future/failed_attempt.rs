//! Handling of a failure of the inner service.

use std::error::Error;
use std::fmt::{Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_ERROR_BYTES};
use campanile_core::{
    BoxError, Disposition, GivenUp, LockHandle, LockLost, Outcome, Record, error,
};
use tower_service::Service;

use super::running::Running;
use super::state::{AfterSettle, ResponseState};
use crate::defaults::{self, has_no_effect};
use crate::error::{AttemptFailed, ErrorLock, IdempotencyError};
use crate::fields::coordinates;
use crate::keeper::{HeldLock, Settlement};
use crate::layer::{LayerParts, Policies};
use crate::policy::OnExhausted;

pub(super) fn handle_failure<S: Service<R>, R, C>(
    layer: &LayerParts<C>,
    mut running: Running,
    error: impl Into<BoxError>,
) -> ResponseState<S, R> {
    let policies = &layer.policies;
    let repeated_step = running.unrecordable_step();
    let (source, error, disposition) = running.run_user_code(|| {
        let source: BoxError = error.into();
        let disposition = classify(policies, &*source, repeated_step.is_some());
        let error = error_text(&*source);
        (source, error, disposition)
    });
    // Dropping `running` settles the lock as if the handler had been dropped because of the loss.
    if let Some(lost) = error::find::<LockLost>(&*source).filter(|lost| running.is_lost_as(lost)) {
        return ResponseState::refused(IdempotencyError::LockLost(lost.clone()));
    }
    let record = running.record().cloned();
    let is_denied = record.as_ref().is_some_and(|record| record.attempt().is_unavailable_denied());
    let disposition = match disposition {
        Disposition::Unavailable { .. } if is_denied => Disposition::Retry { after: None },
        disposition => disposition,
    };
    let held = running.finish();
    let attempt = held.lock_handle().attempt();
    let backoff = policies.backoff.delay(attempt);
    let max_attempts = layer.settings.max_attempts.into();
    let no_attempt_left = attempt >= max_attempts;
    if let (Disposition::DeadLetter, Some(step)) = (disposition, repeated_step) {
        tracing::warn!(
            record = coordinates(record.as_ref()),
            namespace = held.lock_handle().namespace().as_str(),
            attempt,
            step = &*step,
            "the result of a step cannot be recorded; giving up, because each attempt would run it"
        );
    }
    match disposition {
        Disposition::Retry { after } if !no_attempt_left => {
            // The store limits the delay as well.
            let delay = after.unwrap_or(backoff).min(MAX_BACKOFF);
            let retry = Disposition::Retry { after };
            let settlement = Settlement::Fail { delay, last: false, error };
            settle_with_error(held, settlement, source, retry, max_attempts, Some(delay))
        }
        Disposition::Release => {
            // The effect of a step stays, even if that of the handler was rolled back. The key was
            // therefore tried, and its payload may not change.
            let ran = held.control().has_run_step() || !has_no_effect(&*source);
            let settlement = Settlement::Release { ran };
            settle_with_error(held, settlement, source, disposition, max_attempts, Some(backoff))
        }
        Disposition::Unavailable { .. } => {
            let settlement = Settlement::Release { ran: false };
            settle_with_error(held, settlement, source, disposition, max_attempts, Some(backoff))
        }
        // The failure is not the record's fault, so repeated restarts must not use up its attempts.
        Disposition::Stop => {
            let settlement = Settlement::Release { ran: true };
            settle_with_error(held, settlement, source, disposition, max_attempts, None)
        }
        Disposition::Skip => give_up(held, record.as_ref(), error),
        disposition => match policies.exhausted {
            OnExhausted::GiveUp => give_up(held, record.as_ref(), error),
            OnExhausted::ReturnLock => {
                // Out of attempts is not a permanent failure: the key can be tried again if the maximum is
                // raised.
                let last = disposition == Disposition::DeadLetter;
                return_lock(held, max_attempts, backoff, last, error, source)
            }
        },
    }
}

/// Records the attempt and responds with the handler's error.
fn settle_with_error<S: Service<R>, R>(
    held: HeldLock,
    settlement: Settlement,
    source: BoxError,
    disposition: Disposition,
    max_attempts: u32,
    retry_after: Option<Duration>,
) -> ResponseState<S, R> {
    let lock = held.lock_handle().clone();
    let failed = failed_error(&lock, disposition, max_attempts, retry_after, source, None);
    ResponseState::settle(held, settlement, AfterSettle::Error(failed))
}

/// Gives the key up without a dead letter, as the user has configured.
fn give_up<S: Service<R>, R>(
    held: HeldLock,
    record: Option<&Record>,
    error: Box<str>,
) -> ResponseState<S, R> {
    let (attempt, namespace) = (held.lock_handle().attempt(), held.lock_handle().namespace());
    tracing::warn!(
        record = coordinates(record),
        namespace = namespace.as_str(),
        attempt,
        %error,
        "record given up without a dead letter"
    );
    let given_up = GivenUp::new(attempt, Some(error.clone()));
    ResponseState::settle(
        held,
        Settlement::GiveUp { reason: error },
        AfterSettle::Answer(Outcome::GivenUp(given_up)),
    )
}

/// Puts the lock into the error, so that the caller can publish the dead letter under it.
fn return_lock<S: Service<R>, R>(
    mut held: HeldLock,
    max_attempts: u32,
    delay: Duration,
    last: bool,
    error: Box<str>,
    source: BoxError,
) -> ResponseState<S, R> {
    held.set_drop_failure(delay, last, error);
    held.control().end_steps();
    let lock = held.lock_handle().clone();
    let dead = Disposition::DeadLetter;
    ResponseState::refused(failed_error(&lock, dead, max_attempts, None, source, Some(held)))
}

fn failed_error(
    lock: &LockHandle,
    disposition: Disposition,
    max_attempts: u32,
    retry_after: Option<Duration>,
    source: BoxError,
    held: Option<HeldLock>,
) -> IdempotencyError {
    IdempotencyError::AttemptFailed(AttemptFailed {
        key: lock.key().clone(),
        attempt: lock.attempt(),
        max_attempts,
        disposition,
        retry_after,
        source,
        lock: ErrorLock::new(held),
    })
}

/// Takes the disposition of the first classifier that has one. A panic of a classifier counts as "retry".
///
/// The error of a step is not searched for: an error type, such as that of `anyhow`, may hide it.
fn classify(policies: &Policies, error: &(dyn Error + 'static), repeats_step: bool) -> Disposition {
    let classified = catch_unwind(AssertUnwindSafe(|| {
        policies.classifiers.iter().find_map(|classifier| classifier.classify(error))
    }));
    match classified {
        Ok(Some(disposition)) => disposition,
        Ok(None) => defaults::classify(error, repeats_step),
        Err(_) if repeats_step => Disposition::DeadLetter,
        Err(_) => Disposition::Retry { after: None },
    }
}

/// Joins the texts of the error and its sources, truncated as an entry keeps them.
fn error_text(error: &(dyn Error + 'static)) -> Box<str> {
    let mut text = BoundedText(String::new());
    for error in error::sources(error) {
        let separator = if text.0.is_empty() { "" } else { ": " };
        if write!(text, "{separator}{error}").is_err() {
            break;
        }
    }
    text.0.into()
}

/// The text of an error, truncated as an entry keeps it.
pub(crate) fn display_text(error: &dyn Display) -> Box<str> {
    let mut text = BoundedText(String::new());
    // A text that does not fit is truncated.
    let _ = write!(text, "{error}");
    text.0.into()
}

/// Text of bounded size: the `Display` of an error may write a whole page.
struct BoundedText(String);

impl Write for BoundedText {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let capacity = MAX_ERROR_BYTES - self.0.len();
        let fits =
            (0..=capacity.min(part.len())).rev().find(|at| part.is_char_boundary(*at)).unwrap_or(0);
        self.0.push_str(&part[..fits]);
        if fits < part.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a chain of errors.
    fn text_of(texts: &[&str]) -> Box<str> {
        #[derive(Debug)]
        struct Chained(String, Option<Box<Chained>>);

        impl Display for Chained {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Error for Chained {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                self.1.as_deref().map(|source| source as _)
            }
        }

        let chained = texts
            .iter()
            .rev()
            .fold(None, |source, text| Some(Box::new(Chained((*text).to_owned(), source))));
        error_text(&*chained.unwrap())
    }

    #[test]
    fn text_of_an_error_ends_at_the_first_character_that_does_not_fit() {
        assert_eq!(&*text_of(&["no answer", "no route"]), "no answer: no route");
        let long = "a".repeat(MAX_ERROR_BYTES - 3);
        assert_eq!(*text_of(&[&long, "bcd"]), format!("{long}: b"));
        assert_eq!(*text_of(&[&long, "é", "e"]), format!("{long}: "));
    }
}
