//! From a record to a request with a body and a key: nothing panics on data, and each way has its
//! own typed end.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod async_decoding;
mod decoding;
mod errors;
mod keys;
mod records;
