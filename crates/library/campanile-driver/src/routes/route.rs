//! Type-erased services.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use campanile_core::{BoxError, BoxableError, Record, error};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tower_service::Service;

use crate::error::{NoRoute, panic_text};
use crate::reports::{QueueId, Report, Reports};
use crate::source::ItemResult;

/// A type-erased service.
pub(crate) trait Route: Send + Sync {
    /// Waits until the service is ready, then calls it.
    fn call(&self, record: Record, readiness_reporter: ReadinessReporter) -> RouteFuture;
}

/// The response to one record.
pub(crate) type RouteFuture = BoxFuture<'static, Result<ItemResult, RouteError>>;

/// Why a service returned no response.
pub(crate) enum RouteError {
    /// The service will never be ready.
    ServiceFailed(BoxError),
    /// The service returned an error.
    Failed(BoxError),
}

/// A service that is cloned for each record.
pub(super) struct ServiceRoute<S: Service<Record>> {
    service: Mutex<S>,
    /// What the service serves, for its errors. `None` if it serves everything.
    serves: Option<Arc<str>>,
    into_item: fn(S::Response, &Record) -> ItemResult,
}

impl<S> ServiceRoute<S>
where
    S: Service<Record>,
{
    /// Creates one of several routes, which ignores the responses.
    pub(super) fn new(service: S, serves: impl Into<Arc<str>>) -> Self {
        let serves = Some(serves.into());
        Self { service: Mutex::new(service), serves, into_item: |_, _| Ok(None) }
    }

    /// Creates the only route, which interprets the responses with `into_item`.
    pub(super) fn with_items(
        service: S,
        into_item: fn(S::Response, &Record) -> ItemResult,
    ) -> Self {
        Self { service: Mutex::new(service), serves: None, into_item }
    }
}

impl<S> Route for ServiceRoute<S>
where
    S: Service<Record> + Clone + Send + 'static,
    S::Response: 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
{
    fn call(&self, record: Record, readiness_reporter: ReadinessReporter) -> RouteFuture {
        // A `clone` that panics leaves the service unchanged, so a poisoned lock is harmless.
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (into_item, serves) = (self.into_item, self.serves.clone());
        Box::pin(async move {
            if let Err(source) = readiness_reporter.wait_ready(&mut service, &record).await {
                return Err(RouteError::ServiceFailed(match serves {
                    Some(serves) => FailedService { serves, source }.into(),
                    None => source,
                }));
            }
            let response = service.call(record.clone());
            // Do not hold the service's resources, such as a channel to a worker, while the handler
            // runs.
            drop(service);
            let response = response.await.map_err(|error| RouteError::Failed(error.into()))?;
            Ok(into_item(response, &record))
        })
    }
}

/// Reports to the scheduler that a record waits for its service. Then other records of the same
/// service are held up, and no others.
pub(crate) struct ReadinessReporter {
    queue: QueueId,
    reports: Arc<Reports>,
}

impl ReadinessReporter {
    pub(crate) fn new(queue: QueueId, reports: Arc<Reports>) -> Self {
        Self { queue, reports }
    }

    /// Waits until the service is ready.
    ///
    /// A record that was started ahead of its turn is not reported, so it holds nothing up.
    async fn wait_ready<S>(self, service: &mut S, record: &Record) -> Result<(), BoxError>
    where
        S: Service<Record, Error: BoxableError>,
    {
        let Self { queue, reports } = self;
        let mut is_waiting = false;
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| service.poll_ready(cx)));
            let polled = match polled {
                Ok(polled) => polled.map_err(Into::into),
                Err(panic) => {
                    Poll::Ready(Err(format!("poll_ready panicked: {}", panic_text(panic)).into()))
                }
            };
            match polled {
                Poll::Pending if !is_waiting && !record.attempt().is_ahead() => {
                    is_waiting = true;
                    reports.send(Report::NotReady { queue });
                }
                Poll::Ready(_) if is_waiting => reports.send(Report::Ready { queue }),
                _ => {}
            }
            polled
        })
        .await
    }
}

/// The fallback of routes without one. Fails with [`NoRoute`] for every record.
pub(crate) struct NoFallback;

impl Route for NoFallback {
    fn call(&self, record: Record, _: ReadinessReporter) -> RouteFuture {
        let no_route = NoRoute { topic: record.origin().topic.to_string().into() };
        ready(Err(RouteError::Failed(error::permanent(no_route).into()))).boxed()
    }
}

/// Names the service, out of several, that will never be ready again.
#[derive(Debug)]
struct FailedService {
    serves: Arc<str>,
    source: BoxError,
}

impl fmt::Display for FailedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the service for {}", self.serves)
    }
}

impl Error for FailedService {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
