//! Mapping a handler's error to the [`Disposition`] of its record.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;

use crate::{Disposition, error};

/// Decides what a handler's error means. Returning `None` defers to the next classifier, and
/// finally to the defaults.
///
/// Implemented by closures over the error, and by [`on`] for your own error types. Classifiers only
/// see the handler's errors; locked keys, backoff and an unavailable store are never passed to them.
pub trait Classify: Send + Sync + 'static {
    /// Chooses the disposition for this error, or `None` for no opinion.
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition>;
}

impl<F> Classify for F
where
    F: Fn(&(dyn Error + 'static)) -> Option<Disposition> + Send + Sync + 'static,
{
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        self(error)
    }
}

/// Classifies errors of type `E`, found anywhere in the source chain.
///
/// ```
/// use campanile_core::{BoxError, Disposition, classify::{self, Classify}};
///
/// #[derive(Debug)]
/// enum ChargeError { CardExpired, GatewayBusy }
/// # impl std::fmt::Display for ChargeError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("charge") }
/// # }
/// # impl std::error::Error for ChargeError {}
///
/// let by_kind = classify::on(|e: &ChargeError| match e {
///     ChargeError::CardExpired => Disposition::DeadLetter,
///     ChargeError::GatewayBusy => Disposition::Retry { after: None },
/// });
/// let error: BoxError = ChargeError::CardExpired.into();
/// assert_eq!(by_kind.classify(&*error), Some(Disposition::DeadLetter));
/// ```
pub fn on<E, F>(classify: F) -> On<E, F>
where
    E: Error + 'static,
    F: Fn(&E) -> Disposition + Send + Sync + 'static,
{
    On { classify, error: PhantomData }
}

/// A classifier for one error type. Created by [`on`].
#[must_use]
pub struct On<E, F> {
    classify: F,
    error: PhantomData<fn(&E)>,
}

impl<E, F> fmt::Debug for On<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "On<{}>", std::any::type_name::<E>())
    }
}

impl<E, F> Classify for On<E, F>
where
    E: Error + 'static,
    F: Fn(&E) -> Disposition + Send + Sync + 'static,
{
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        error::find(error).map(&self.classify)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_another_type_has_no_disposition() {
        let on_permanent = on(|_: &error::Permanent| Disposition::DeadLetter);
        let (both, skip) = (error::permanent(error::skip("no")), error::skip("no"));
        assert_eq!(on_permanent.classify(&both), Some(Disposition::DeadLetter));
        assert_eq!(on_permanent.classify(&skip), None);
    }
}
