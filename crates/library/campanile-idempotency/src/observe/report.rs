//! The metrics and the events of observed requests.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::telemetry::instruments::{self, NAMESPACE};
use campanile_core::telemetry::{
    AttributeValue, Counter, Family, Histogram, ObservedOrigin, ObservedVerdict,
};
use campanile_core::{BoxError, Coordinates, Namespace};
use tracing::field::display;

use super::observer::Parts;
use crate::keeper::{LockKey, RunSite};
use crate::store::StoreError;

/// What the layer would have done, and why.
#[derive(Debug)]
pub(super) struct Finding {
    verdict: ObservedVerdict,
    duplicate: Option<Duplicate>,
    error: Option<StoreError>,
}

#[derive(Debug)]
struct Duplicate {
    origin: ObservedOrigin,
    completed_at: Option<Coordinates>,
    age: Duration,
}

impl Finding {
    pub(super) fn of(verdict: ObservedVerdict) -> Self {
        Self { verdict, duplicate: None, error: None }
    }

    /// Compares the position of the record that has completed the key with those of this one.
    pub(super) fn duplicate(
        completed_at: Option<Coordinates>,
        positions: [Option<&Coordinates>; 2],
        age: Duration,
    ) -> Self {
        let origin = match &completed_at {
            Some(at) if positions.contains(&Some(at)) => ObservedOrigin::Redelivery,
            Some(_) if positions.iter().any(Option::is_some) => ObservedOrigin::Repeat,
            _ => ObservedOrigin::Unknown,
        };
        let duplicate = Some(Duplicate { origin, completed_at, age });
        Self { duplicate, ..Self::of(ObservedVerdict::Duplicate) }
    }

    pub(super) fn store_error(error: StoreError) -> Self {
        let verdict = match error.kind().is_outage() {
            true => ObservedVerdict::Unavailable,
            false => ObservedVerdict::Unreadable,
        };
        Self { error: Some(error), ..Self::of(verdict) }
    }
}

/// Counts and logs findings.
#[derive(Debug)]
pub(super) struct Reporter {
    namespace: Namespace,
    /// The attempts after which a layer that guards would give the key up.
    max_attempts: u16,
    requests: Family<ObservedVerdict, Counter>,
    duplicate_ages: Family<ObservedOrigin, Histogram>,
}

impl Reporter {
    pub(super) fn new(namespace: &Namespace, max_attempts: u16) -> Self {
        let labels = &[(NAMESPACE, namespace.as_str())];
        Self {
            namespace: namespace.clone(),
            max_attempts,
            requests: Family::new(&instruments::OBSERVED_REQUESTS, labels),
            duplicate_ages: Family::new(&instruments::OBSERVED_DUPLICATE_AGES, labels),
        }
    }

    /// Returns the finding for a key that was free.
    pub(super) fn granted(&self, attempt: u32, overlaps: bool) -> Finding {
        Finding::of(match attempt {
            _ if overlaps => ObservedVerdict::InProgress,
            ..=1 => ObservedVerdict::First,
            _ if attempt > self.max_attempts.into() => ObservedVerdict::GivenUp,
            _ => ObservedVerdict::Retry,
        })
    }

    /// Reports a request for which no lock is acquired.
    pub(super) fn report_refused(
        &self,
        verdict: ObservedVerdict,
        at: Option<&Coordinates>,
        error: Option<&BoxError>,
    ) {
        self.requests.of(verdict).increment(1);
        let (record, namespace) = (at.map(display), self.namespace.as_str());
        match verdict {
            ObservedVerdict::NotObserved => {
                tracing::debug!(record, namespace, "request not observed");
            }
            verdict => {
                let error = error.map(display);
                let verdict = text(verdict);
                tracing::warn!(
                    record,
                    namespace,
                    verdict,
                    error,
                    "observed a request without a valid key"
                );
            }
        }
    }
}

/// Returns the value as metrics have it.
fn text<V: AttributeValue>(value: V) -> &'static str {
    V::ATTRIBUTE.values[value.index()]
}

/// The report of an observation. Dropped without a verdict, it counts as not observed.
pub(super) struct Report {
    pub(super) parts: Arc<Parts>,
    pub(super) key: LockKey,
    pub(super) site: RunSite,
    is_done: bool,
}

impl Report {
    pub(super) fn new(parts: Arc<Parts>, key: LockKey, site: RunSite) -> Self {
        Self { parts, key, site, is_done: false }
    }

    /// Reports the verdict. Only the first one counts.
    pub(super) fn finish(&mut self, finding: Finding) {
        if std::mem::replace(&mut self.is_done, true) {
            return;
        }
        let Finding { verdict, duplicate, error } = finding;
        let reporter = &self.parts.reporter;
        reporter.requests.of(verdict).increment(1);
        macro_rules! event {
            ($level:ident, $($rest:tt)+) => {
                tracing::event!(
                    tracing::Level::$level,
                    record = self.site.coordinates.as_ref().map(display),
                    namespace = reporter.namespace.as_str(),
                    key_digest = %self.key.store_key.digest_hex(),
                    verdict = text(verdict),
                    $($rest)+
                )
            };
        }
        if let Some(Duplicate { origin, completed_at, age }) = duplicate {
            reporter.duplicate_ages.of(origin).record(age.as_secs_f64());
            let completed_at = completed_at.map(display);
            return event!(INFO, origin = text(origin), completed_at, ?age, "observed a duplicate");
        }
        match verdict {
            ObservedVerdict::First => event!(DEBUG, "observed a new key"),
            ObservedVerdict::Retry => {
                event!(INFO, "observed a key with earlier attempts that did not complete");
            }
            ObservedVerdict::InProgress => {
                event!(WARN, "observed a run that overlaps another run of its key");
            }
            ObservedVerdict::BackingOff => event!(INFO, "observed a run during its key's backoff"),
            ObservedVerdict::GivenUp => event!(WARN, "observed a run of a key that is given up"),
            ObservedVerdict::Mismatch => {
                event!(WARN, "observed a key that was used for another payload");
            }
            _ => {
                let error = error.as_ref().map(display);
                event!(WARN, error, "request not observed, because of the store");
            }
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.is_done {
            let site = self.site.coordinates.as_ref();
            self.parts.reporter.report_refused(ObservedVerdict::NotObserved, site, None);
        }
    }
}
