//! A service inside the layer that is not `Clone`.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use tower::{Service, ServiceBuilder};

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

struct Charge;

impl Service<Request<Payment>> for Charge {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Payment>) -> Self::Future {
        ready(Ok(()))
    }
}

fn main() -> Result<(), BoxError> {
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(IdempotencyLayer::new(
            MemoryStore::new(),
            "payments",
            key::field(|p: &Payment| &p.id),
        )?)
        .service(Charge);
    serve(service);
    Ok(())
}

/// Takes a service with the bounds of the consumer.
fn serve<S>(_: S)
where
    S: Service<Record> + Send + 'static,
    S::Error: BoxableError,
    S::Future: Send + 'static,
{
}
