//! From a record to a request with a body and a key: no data causes a panic, and each failure has
//! its own error type.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod async_decoding;
mod decoding;
mod errors;
mod keys;
mod records;
