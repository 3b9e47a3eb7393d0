//! A type that is not a store.

use campanile_core::{ConfigError, key};
use campanile_idempotency::IdempotencyLayer;

struct Database;

fn main() -> Result<(), ConfigError> {
    IdempotencyLayer::new(Database, "payments", key::header("id"))?;
    Ok(())
}
