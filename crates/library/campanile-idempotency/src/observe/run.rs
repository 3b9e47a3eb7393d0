//! The handler's side of an observed request.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use campanile_core::telemetry::ObservedVerdict;
use campanile_core::{BoxError, Coordinates, Locate, Record};
use tokio::runtime::Handle;

use super::observation::{End, Observation, Shared};
use super::observer::Observer;
use super::report::Report;
use super::running::RunningKey;
use crate::future::display_text;
use crate::keeper::RunSite;
use crate::service::KeyAndFingerprint;

/// What a run is for.
pub(super) struct RunOf {
    pub(super) site: RunSite,
    pub(super) record: Option<Record>,
}

impl RunOf {
    pub(super) fn request(request: &impl Locate) -> Self {
        let record = request.record().cloned();
        let trace = RunSite::of(record.as_ref()).trace;
        Self { site: RunSite { coordinates: request.coordinates(), trace }, record }
    }

    pub(super) fn function(coordinates: Option<Coordinates>) -> Self {
        Self { site: RunSite { coordinates, ..RunSite::of(None) }, record: None }
    }
}

/// A handler that runs, or is about to. If it is dropped before the handler has ended, the attempt has
/// failed, or was interrupted by the driver.
pub(super) struct Run(Option<ObservedRun>);

struct ObservedRun {
    shared: Arc<Shared>,
    record: Option<Record>,
    _running: RunningKey,
}

impl Run {
    /// Starts to observe a handler that the caller starts now. Never waits.
    pub(super) fn start(
        observer: &Observer,
        key: Result<Option<KeyAndFingerprint>, BoxError>,
        of: RunOf,
    ) -> Self {
        let parts = observer.parts();
        let RunOf { site, record } = of;
        let refused = |verdict, error: Option<&BoxError>| {
            parts.reporter.report_refused(verdict, site.coordinates.as_ref(), error);
            Self(None)
        };
        let (key, fingerprint) = match key {
            Ok(Some(key)) => key,
            Ok(None) => return refused(ObservedVerdict::MissingKey, None),
            Err(error) => return refused(ObservedVerdict::InvalidKey, Some(&error)),
        };
        let (Ok(permit), Ok(runtime)) =
            (parts.permits.clone().try_acquire_owned(), Handle::try_current())
        else {
            return refused(ObservedVerdict::NotObserved, None);
        };
        let (running, overlaps) = parts.running.start(&key.store_key);
        let shared = Arc::new(Shared::new(permit));
        let report = Report::new(parts.clone(), key, site);
        let origin = record.as_ref().map(|record| record.origin().clone());
        let observation =
            Observation { report, shared: shared.clone(), fingerprint, origin, overlaps };
        drop(runtime.spawn(observation.run()));
        Self(Some(ObservedRun { shared, record, _running: running }))
    }

    /// Calls the handler. If it panics, records that, and the panic continues.
    pub(super) fn catch_panic<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if self.0.is_none() {
            return call();
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            self.finish(End::Failed("the handler panicked".into()));
            resume_unwind(panic)
        })
    }

    /// Records the result of the handler.
    pub(super) fn end<T>(&mut self, result: &Result<T, impl Display>) {
        if self.0.is_some() {
            self.finish(match result {
                Ok(_) => End::Succeeded,
                // The text is user code.
                Err(error) => End::Failed(
                    catch_unwind(AssertUnwindSafe(|| display_text(error))).unwrap_or_default(),
                ),
            });
        }
    }

    fn finish(&mut self, end: End) {
        if let Some(ObservedRun { shared, record: _, _running }) = self.0.take() {
            drop(_running);
            shared.end(end);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(run) = &self.0 {
            let interrupted =
                run.record.as_ref().is_some_and(|it| it.attempt().interrupt().is_set());
            self.finish(if interrupted {
                End::Interrupted
            } else {
                End::Failed("dropped before it completed, for example by a timeout".into())
            });
        }
    }
}
