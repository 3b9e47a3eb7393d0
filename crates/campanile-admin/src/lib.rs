//! Inspects and repairs what Campanile keeps in Kafka and in its stores, for operators.
//!
//! The command `campanile` (crate `campanile-cli`) is a front for this library.
//!
//! # Layout
//!
//! * [`redrive`] brings dead letters back.
//! * [`StoreConfig`] is the store of any kind, from a URL.
//! * [`AdminError`] says whether a setting is wrong or a server is unavailable.

pub mod redrive;

mod error;
mod store_config;

pub use self::error::AdminError;
pub use self::store_config::StoreConfig;
