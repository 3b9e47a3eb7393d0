//! A publisher as a tower service.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use campanile_core::Output;
use tower_service::Service;

use super::{PublishError, Publisher};

impl Service<Output> for Publisher {
    type Response = ();
    type Error = PublishError;
    type Future = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), PublishError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, output: Output) -> Self::Future {
        let publisher = self.clone();
        let output = output.with_current_trace();
        Box::pin(async move { publisher.publish(&output).await })
    }
}
