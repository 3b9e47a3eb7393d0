//! A handler closure that does not name its request type.

use campanile_core::{BoxError, BoxableError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use tower::{Service, ServiceBuilder};

fn main() -> Result<(), BoxError> {
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(IdempotencyLayer::new(
            MemoryStore::new(),
            "payments",
            key::header("id"),
        )?)
        .service_fn(async |request: Request<_>| {
            drop(request);
            Ok::<_, BoxError>(())
        });
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
