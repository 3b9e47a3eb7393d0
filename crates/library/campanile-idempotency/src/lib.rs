//! The tower middleware of Campanile. It acquires one lock per idempotency key, renews the lock
//! while the inner service runs, and records the outcome, from which it answers later duplicates.
//!
//! ```
//! use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, key};
//! use campanile_idempotency::{IdempotencyLayer, MemoryStore};
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! #[derive(serde::Deserialize)]
//! struct Payment { id: String, cents: u64 }
//!
//! async fn charge(request: Request<Payment>) -> Result<u64, BoxError> {
//!     Ok(request.body().cents)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut service = ServiceBuilder::new()
//!     // records that cannot be decoded never acquire a lock
//!     .layer(DecodeLayer::json())
//!     // one lock per payment, renewed while the handler runs
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::field(|p: &Payment| &p.id))?)
//!     // a handler that times out fails its attempt
//!     .timeout(Duration::from_secs(10))
//!     .service_fn(charge);
//!
//! let record = Record::builder("payments", 0, 7).payload(r#"{"id":"p-1","cents":100}"#).build();
//! assert_eq!(service.ready().await?.call(record.clone()).await?, Outcome::Processed(100));
//! // the same payment again
//! assert!(service.ready().await?.call(record).await?.is_duplicate());
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! * [`IdempotencyLayer`] creates an [`IdempotencyService`] with a [`ResponseFuture`]. [`policy`]
//!   and [`reply`] contain its options, and [`IdempotencyError`] is its error. [`Runner`] is the
//!   layer around a plain function.
//! * [`ObserveLayer`] and [`Observer`] report what the layer would do, and let every request through.
//! * [`BatchLayer`] is for handlers that process many requests at a time.
//! * [`LockKeeper`] sends all operations to the store: it batches commands, renews locks, and
//!   repeats a settlement until the store replies.
//! * `telemetry` counts what layers and keepers do; [`campanile_core::telemetry`] lists the metrics.
//! * [`store`] contains the trait of stores; [`MemoryStore`] is an in-memory implementation.

mod backoff;
mod batch;
mod config;
mod defaults;
mod error;
mod fields;
mod future;
mod keeper;
mod layer;
mod memory_store;
mod observe;
pub mod policy;
pub mod reply;
mod runner;
mod service;
mod steps;
pub mod store;
mod telemetry;
mod transactional;
mod wait_for_lock;

pub use self::backoff::Backoff;
pub use self::batch::{BatchError, BatchFuture, BatchLayer, BatchService};
pub use self::config::IdempotencyConfig;
pub use self::defaults::Defaults;
pub use self::error::{AttemptFailed, Exhausted, IdempotencyError, Panicked, ReplyTooLarge};
pub use self::future::ResponseFuture;
pub use self::keeper::{HeldLock, IntoKeeper, LockKeeper, SettledFuture, Settling, ShutdownReport};
pub use self::layer::IdempotencyLayer;
pub use self::memory_store::MemoryStore;
pub use self::observe::{ObserveFuture, ObserveLayer, ObserveService, Observer};
pub use self::reply::{ReplyCipher, ReplyCodec};
pub use self::runner::Runner;
pub use self::service::{CloneableService, IdempotencyService};
pub use self::store::{
    EntryStore, ExpireStore, Found, InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage,
    Stepped, Store, StoreError, StoreErrorKind,
};
pub use self::wait_for_lock::WaitForLock;
