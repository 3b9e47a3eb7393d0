//! Health over HTTP.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use tower_service::Service;

use crate::handle::Handle;
use crate::health::{Health, Unhealthy};

/// An HTTP service for liveness and readiness probes.
///
/// Responds to `…/live` and `…/ready`, with any method. The status is 200, or 503 with the
/// [reason](Unhealthy) as text.
///
/// ```
/// use axum::Router;
/// use campanile_driver::{HealthService, Serve};
///
/// /// `/health/live` and `/health/ready`
/// fn routes(serve: &Serve) -> Router {
///     Router::new().nest_service("/health", HealthService::new(serve.handle()))
/// }
/// ```
///
/// As a Kubernetes liveness probe, `/live` restarts a consumer that hangs, that could connect only
/// with certificates that it has not read, or for which librdkafka does not fetch a partition any more, and
/// nothing else. Use
/// `/ready` as the readiness probe, so that a rollout waits until a consumer has its partitions.
/// [`Health`] describes both.
#[derive(Clone, Debug)]
pub struct HealthService {
    handle: Handle,
}

impl HealthService {
    /// Creates a service that reports the health of this handle's consumer.
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }

    fn respond(&self, path: &str) -> Response<String> {
        let Health { live, ready } = self.handle.health();
        // Only the last segment is matched, because some routers strip the prefix under which the
        // service is nested, and others do not.
        let (status, body) = match path.rsplit('/').next() {
            Some("live") => probe_result(live, "live"),
            Some("ready") => probe_result(ready, "ready"),
            _ => (StatusCode::NOT_FOUND, "not found: use /live or /ready\n".to_owned()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}

fn probe_result(health: Result<(), Unhealthy>, body: &str) -> (StatusCode, String) {
    match health {
        Ok(()) => (StatusCode::OK, format!("{body}\n")),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

impl<B> Service<Request<B>> for HealthService {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(Ok(self.respond(request.uri().path())))
    }
}
