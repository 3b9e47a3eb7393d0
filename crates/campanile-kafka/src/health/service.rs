//! Health over HTTP.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use tower_service::Service;

use super::{Health, Unhealthy};
use crate::handle::Handle;

/// Answers `…/live` and `…/ready` of any method: 200, or 503 with the [reason](Unhealthy) as text.
///
/// ```
/// # use campanile_core::{BoxError, Record};
/// use axum::Router;
/// use campanile_kafka::{Consumer, ConsumerConfig, HealthService};
/// # fn serving() -> Result<(), BoxError> {
/// # let service = tower::service_fn(|_: Record| async { Ok::<_, BoxError>(()) });
/// let serve = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
///     .subscribe(["payments"])
///     .serve(service);
/// // `/health/live` and `/health/ready`
/// let routes: Router =
///     Router::new().nest_service("/health", HealthService::new(serve.handle()));
/// # drop(routes);
/// # Ok(())
/// # }
/// # serving().unwrap();
/// ```
///
/// As a liveness probe of Kubernetes' `/live` restarts what hangs, and nothing else; give `/ready` to
/// the readiness probe, so that a rollout waits until a consumer has its partitions. What each means
/// is said at [`Health`].
#[derive(Clone, Debug)]
pub struct HealthService {
    handle: Handle,
}

impl HealthService {
    /// Tells of the consumer of this handle.
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }

    fn answer(&self, path: &str) -> Response<String> {
        let Health { live, ready } = self.handle.health();
        // The last part only, for whatever it is mounted under is stripped by some routers.
        let (status, body) = match path.rsplit('/').next() {
            Some("live") => told(live, "live"),
            Some("ready") => told(ready, "ready"),
            _ => (StatusCode::NOT_FOUND, "there are /live and /ready\n".to_owned()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}

fn told(health: Result<(), Unhealthy>, well: &str) -> (StatusCode, String) {
    match health {
        Ok(()) => (StatusCode::OK, format!("{well}\n")),
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
        ready(Ok(self.answer(request.uri().path())))
    }
}
