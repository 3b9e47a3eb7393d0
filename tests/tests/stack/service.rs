//! A handwritten inner service with its own readiness.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use campanile::Request;
use campanile::prelude::*;
use tower::{Service, ServiceBuilder};

use super::{PAYLOADS_WITH_DUPLICATE, Payment, idempotency_layer, serve, start_kafka};

/// Counts its charges. It is ready only at every second poll, and panics when called without having
/// been ready.
struct Terminal {
    charged: Arc<AtomicU32>,
    ready: bool,
}

impl Clone for Terminal {
    /// Creates a clone that is not ready, as clones of tower's own services are.
    fn clone(&self) -> Self {
        Self { charged: self.charged.clone(), ready: false }
    }
}

impl Service<Request<Payment>> for Terminal {
    type Response = u32;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<u32, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        self.ready = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn call(&mut self, request: Request<Payment>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        let charged = self.charged.clone();
        Box::pin(async move {
            request.lock().unwrap().check()?;
            Ok(charged.fetch_add(1, Ordering::Relaxed) + 1)
        })
    }
}

#[tokio::test]
async fn handwritten_service_is_polled_and_called_once_per_key() {
    let kafka = start_kafka(PAYLOADS_WITH_DUPLICATE);
    let charged = Arc::new(AtomicU32::new(0));
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(idempotency_layer().with_reply(reply::json()))
        .service(Terminal { charged: charged.clone(), ready: false });
    let summary = serve(&kafka, 4, service).await.unwrap();
    assert_eq!(summary.processed, 4);
    assert_eq!(charged.load(Ordering::Relaxed), 3);
}
