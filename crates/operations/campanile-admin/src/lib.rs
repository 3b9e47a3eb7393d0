//! Inspects and repairs what Campanile keeps in Kafka and in its stores, for operators.
//!
//! The command `campanile` (crate `campanile-cli`) is a front for this library.
//!
//! # Layout
//!
//! * [`doctor`] checks a deployment.
//! * [`entries`] reads, lists, repairs and deletes entries; [`explain`] says why a record ran or waits.
//! * [`observe`] compares a topic with what a consumer has done with it: lost records, duplicates, missing keys.
//! * [`redrive`] brings dead letters back.
//! * [`schema`] migrates the schema of Postgres.
//! * [`StoreConfig`] is the store of any kind, from a URL, and [`AnyStore`] the connected store.
//! * [`AdminError`] says whether a setting is wrong or a server is unavailable.

pub mod doctor;
pub mod entries;
pub mod explain;
pub mod observe;
pub mod redrive;
pub mod schema;

mod any_store;
mod error;
mod kafka;
mod pacer;
mod store_config;
mod time;

pub use self::any_store::AnyStore;
pub use self::error::AdminError;
pub use self::store_config::StoreConfig;
