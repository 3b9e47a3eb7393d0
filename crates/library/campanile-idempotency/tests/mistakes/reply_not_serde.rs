//! A reply type without serde's traits.

use campanile_core::{BoxError, BoxableError, DecodeLayer, Record, Request, key};
use campanile_idempotency::{IdempotencyLayer, MemoryStore, reply};
use tower::{Service, ServiceBuilder};

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
}

struct Receipt;

async fn charge(_: Request<Payment>) -> Result<Receipt, BoxError> {
    Ok(Receipt)
}

fn main() -> Result<(), BoxError> {
    let layer = IdempotencyLayer::new(
        MemoryStore::new(),
        "payments",
        key::field(|p: &Payment| &p.id),
    )?;
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(layer.with_reply(reply::json()))
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
