//! No `DecodeLayer`: a record cannot carry a lock.

use campanile_core::{BoxError, BoxableError, Record};
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use tower::{Service, ServiceBuilder};

async fn charge(_: Record) -> Result<(), BoxError> {
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let service = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(
            MemoryStore::new(),
            "payments",
            |record: &Record| record.offset(),
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
