//! The handler's error does not implement `Error`.

use campanile_core::{BoxError, BoxableError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use tower::{Service, ServiceBuilder};

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

struct ChargeError;

async fn charge(_: Request<Payment>) -> Result<(), ChargeError> {
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(IdempotencyLayer::new(
            MemoryStore::new(),
            "payments",
            key::field(|p: &Payment| &p.id),
        )?)
        .service_fn(charge);
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
