//! campanile-idempotency
