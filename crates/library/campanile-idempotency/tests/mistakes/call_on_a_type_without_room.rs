//! A request type that cannot carry a lock, with the service called directly.

use campanile_core::BoxError;
use campanile_idempotency::{IdempotencyLayer, MemoryStore};
use tower::{Service, ServiceBuilder};

struct Job {
    id: u64,
}

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let mut service = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(MemoryStore::new(), "jobs", |job: &Job| job.id)?)
        .service_fn(work);
    let _ = service.call(Job { id: 7 });
    Ok(())
}
