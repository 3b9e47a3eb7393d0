//! The default classification of errors.

use std::error::Error;

use campanile_core::error::{Mark, Marker, NotRun, Undone};
use campanile_core::{Classify, DecodeError, Disposition, StepError, error};
use tower::load_shed::error::Overloaded;

use crate::error::ReplyTooLarge;

/// The last classifier in the chain, which classifies every error.
///
/// * Markers of [`error`](campanile_core::error): the marked disposition.
/// * A body that cannot be decoded, a reply that is too large, or the result of a step that is too large
///   or cannot be encoded: dead letter, because no attempt can succeed. If the decoder's error has a
///   marker, the marker takes precedence. The layer remembers the failures of its steps, so it finds them
///   also behind an error type that hides its sources.
/// * [`Overloaded`] from inside the layer: release, because the handler did not run.
/// * Everything else, including timeouts and panics: retry after the backoff.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults;

impl Classify for Defaults {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        Some(classify(error, error::sources(error).any(is_unrecordable_step)))
    }
}

/// Classifies an error of an attempt. `repeats_step` is whether the next attempt would run a step again,
/// because its result cannot be recorded.
pub(crate) fn classify(error: &(dyn Error + 'static), repeats_step: bool) -> Disposition {
    let mut undecoded = false;
    // The outermost marker wins, because it was added last.
    for error in error::marked_sources(error) {
        // The sources may contain a marker of the decoder, for example for an unavailable schema registry.
        undecoded |= error.is::<DecodeError>();
        match Mark::marker_of(error) {
            Some(Marker::Permanent) => return Disposition::DeadLetter,
            Some(Marker::Skip) => return Disposition::Skip,
            Some(Marker::Stop) => return Disposition::Stop,
            Some(Marker::NotRun | Marker::Undone) if !repeats_step => return Disposition::Release,
            Some(Marker::Unavailable(dependency)) if !repeats_step => {
                return Disposition::Unavailable { dependency };
            }
            Some(Marker::RetryAfter(after)) => return Disposition::Retry { after: Some(after) },
            _ if error.is::<ReplyTooLarge>() => return Disposition::DeadLetter,
            _ if error.is::<Overloaded>() && !repeats_step => return Disposition::Release,
            _ => {}
        }
    }
    match undecoded || repeats_step {
        true => Disposition::DeadLetter,
        false => Disposition::Retry { after: None },
    }
}

/// Checks whether a step has run and its result cannot be recorded.
fn is_unrecordable_step(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StepError::NotEncoded { .. } | StepError::TooLarge { .. }))
}

/// Checks whether the inner service ran without effect, or not at all: tower's load shedding fails
/// with this very error, as do Campanile's own layers. An error of this type in the source chain of
/// a different error may come from a client inside a handler that did run.
pub(crate) fn has_no_effect(error: &(dyn Error + 'static)) -> bool {
    error.is::<Overloaded>() || error.is::<NotRun>() || error.is::<Undone>()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_core::{BoxError, DecodeLayer, Record, Request, error};
    use futures_util::FutureExt;
    use tower::{Layer, Service, service_fn};

    use super::*;

    fn classify(error: &(dyn Error + 'static)) -> Disposition {
        Defaults.classify(error).unwrap()
    }

    #[test]
    fn outermost_marker_wins() {
        let inner = error::permanent("card expired");
        assert_eq!(classify(&inner), Disposition::DeadLetter);
        let second = Duration::from_secs(1);
        let outer = error::retry_after(inner, second);
        assert_eq!(classify(&outer), Disposition::Retry { after: Some(second) });
        assert_eq!(classify(&error::skip(outer)), Disposition::Skip);
        assert_eq!(classify(&error::stop("no database")), Disposition::Stop);
    }

    #[test]
    fn decode_error_is_dead_letter_unless_marked() {
        let decoded = |fail: fn() -> BoxError| {
            let decode = DecodeLayer::with(move |_: &Record| Err::<(), _>(fail()));
            let handler = service_fn(async |_: Request<()>| Ok::<_, BoxError>(()));
            let call = decode.layer(handler).call(Record::builder("t", 0, 0).build());
            classify(&*call.now_or_never().unwrap().unwrap_err())
        };
        assert_eq!(decoded(|| "no JSON".into()), Disposition::DeadLetter);
        assert_eq!(decoded(|| error::skip("not ours").into()), Disposition::Skip);
        let unavailable =
            decoded(|| error::retry_after("no registry", Duration::from_secs(1)).into());
        assert_eq!(unavailable, Disposition::Retry { after: Some(Duration::from_secs(1)) });
    }

    #[test]
    fn only_step_without_a_possible_record_is_dead_letter() {
        let name = || "charge".into();
        assert_eq!(classify(&StepError::TooLarge { name: name() }), Disposition::DeadLetter);
        let not_encoded = StepError::NotEncoded { name: name(), source: "no string".into() };
        assert_eq!(classify(&not_encoded), Disposition::DeadLetter);
        let not_recorded = StepError::NotRecorded { name: name(), source: "no route".into() };
        assert_eq!(classify(&not_recorded), Disposition::Retry { after: None });
    }

    #[test]
    fn overload_is_released_and_other_errors_retried() {
        assert_eq!(classify(&Overloaded::new()), Disposition::Release);
        let elapsed = tower::timeout::error::Elapsed::new();
        assert_eq!(classify(&elapsed), Disposition::Retry { after: None });
    }
}
