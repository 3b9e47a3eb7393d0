//! Handlers that take batches of requests.

mod collecting;
mod failing;
mod guarded;
mod random;

use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::{BatchLayer, BatchService};
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt};
use tower_test::mock::{self, Mock, SendResponse};

type Results = Vec<Result<u32, BoxError>>;
type MockHandle = mock::Handle<Vec<u32>, Results>;
type Batch = (Vec<u32>, SendResponse<Results>);

/// Creates a batch service around a mock of the handler.
fn mock_service(max: usize, linger: Duration) -> (BatchService<u32, u32>, MockHandle) {
    let (handler, handle): (Mock<Vec<u32>, Results>, MockHandle) = mock::pair();
    (BatchLayer::new(max, linger).unwrap().layer(handler), handle)
}

/// Calls the service in a new task.
fn start(service: &BatchService<u32, u32>, request: u32) -> JoinHandle<Result<u32, BoxError>> {
    tokio::spawn(service.clone().oneshot(request))
}

/// The next batch that the handler has been called with, if any.
fn pending_batch(handle: &mut MockHandle) -> Option<Batch> {
    handle.next_request().now_or_never().flatten()
}

/// Responds to each request with ten times its value.
fn respond_to((batch, reply): Batch) {
    reply.send_response(batch.into_iter().map(|n| Ok(n * 10)).collect());
}
