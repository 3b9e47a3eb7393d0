//! Handling of a failure of the inner service.

use std::error::Error;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::limits::{MAX_BACKOFF, MAX_ERROR_BYTES};
use campanile_core::{BoxError, Classify, Disposition, Lock, LockLost, Outcome, Parked, error};
use tower_service::Service;

use super::running::Running;
use super::state::{State, Then};
use crate::defaults::{Defaults, never_ran};
use crate::error::{Failed, Handover, IdempotencyError};
use crate::keeper::{HeldLock, Settlement};
use crate::layer::{Policies, Shared};
use crate::policy::OnGivenUp;

pub(super) fn failed<S: Service<R>, R, C>(
    shared: &Shared<C>,
    mut running: Running,
    error: impl Into<BoxError>,
) -> State<S, R> {
    let guard = &shared.guard;
    let (source, error, disposition) = running.call(|| {
        let source: BoxError = error.into();
        let (error, disposition) = (text(&*source), classify(guard, &*source));
        (source, error, disposition)
    });
    // Dropping `running` settles the lock as if the handler had been dropped because of the loss.
    if let Some(lost) = error::find::<LockLost>(&*source).filter(|lost| running.ended_by(lost)) {
        return State::refused(IdempotencyError::LockLost(lost.clone()));
    }
    let held = running.finish();
    let attempt = held.lock().attempt();
    let backoff = guard.backoff.delay(attempt);
    let no_attempt_left = attempt >= shared.terms.max_attempts.into();
    match disposition {
        Disposition::Retry { after } if !no_attempt_left => {
            // The store limits the delay as well.
            let delay = after.unwrap_or(backoff).min(MAX_BACKOFF);
            let retry = Disposition::Retry { after };
            let settlement = Settlement::Fail { delay, last: false, error };
            record(held, settlement, source, retry, Some(delay))
        }
        Disposition::Release => {
            let settlement = Settlement::Release { ran: !never_ran(&*source) };
            record(held, settlement, source, Disposition::Release, Some(backoff))
        }
        // The failure is not the record's fault, so repeated restarts must not use up its attempts.
        Disposition::Stop => {
            let settlement = Settlement::Release { ran: true };
            record(held, settlement, source, Disposition::Stop, None)
        }
        Disposition::Skip => reject(held, error),
        disposition => match guard.given_up {
            OnGivenUp::Reject => reject(held, error),
            OnGivenUp::HandOver => {
                // A key without attempts is not doomed: it can be tried again if the maximum is
                // raised.
                let last = disposition == Disposition::DeadLetter;
                hand_over(held, backoff, last, error, source)
            }
        },
    }
}

/// Records the attempt and responds with the handler's error.
fn record<S: Service<R>, R>(
    held: HeldLock,
    settlement: Settlement,
    source: BoxError,
    disposition: Disposition,
    retry_after: Option<Duration>,
) -> State<S, R> {
    let failed = error_of(&held.lock().clone(), disposition, retry_after, source, None);
    State::settle(held, settlement, Then::Error(failed))
}

/// Gives the key up without a dead letter, as the user has configured.
fn reject<S: Service<R>, R>(held: HeldLock, error: Box<str>) -> State<S, R> {
    tracing::warn!(attempt = held.lock().attempt(), %error, "record given up without a dead letter");
    let parked = Parked::new(held.lock().attempt(), Some(error.clone()));
    State::settle(held, Settlement::Reject { reason: error }, Then::Answer(Outcome::Parked(parked)))
}

/// Returns the lock in the error, so that the caller can publish the dead letter under it.
fn hand_over<S: Service<R>, R>(
    mut held: HeldLock,
    delay: Duration,
    last: bool,
    error: Box<str>,
    source: BoxError,
) -> State<S, R> {
    held.drop_fails(delay, last, error);
    let lock = held.lock().clone();
    State::refused(error_of(&lock, Disposition::DeadLetter, None, source, Some(held)))
}

fn error_of(
    lock: &Lock,
    disposition: Disposition,
    retry_after: Option<Duration>,
    source: BoxError,
    handover: Option<HeldLock>,
) -> IdempotencyError {
    IdempotencyError::Failed(Failed {
        key: lock.key().clone(),
        attempt: lock.attempt(),
        disposition,
        retry_after,
        source,
        lock: Handover::new(handover),
    })
}

/// Returns the disposition of the first classifier that has one. A panic counts as "retry".
fn classify(guard: &Policies, error: &(dyn Error + 'static)) -> Disposition {
    let opinion = catch_unwind(AssertUnwindSafe(|| {
        let opinion = guard.classifiers.iter().find_map(|classifier| classifier.classify(error));
        opinion.or_else(|| Defaults.classify(error))
    }));
    opinion.ok().flatten().unwrap_or(Disposition::Retry { after: None })
}

/// Returns the text of the error and its sources, truncated as an entry keeps it.
fn text(error: &(dyn Error + 'static)) -> Box<str> {
    let mut text = Bounded(String::new());
    for error in error::sources(error) {
        let separator = if text.0.is_empty() { "" } else { ": " };
        if write!(text, "{separator}{error}").is_err() {
            break;
        }
    }
    text.0.into()
}

/// Text of bounded size: the `Display` of an error may write a whole page.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let room = MAX_ERROR_BYTES - self.0.len();
        let fits =
            (0..=room.min(part.len())).rev().find(|at| part.is_char_boundary(*at)).unwrap_or(0);
        self.0.push_str(&part[..fits]);
        if fits < part.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}
