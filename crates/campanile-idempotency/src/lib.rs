//! The tower layer of Campanile: one lock for each idempotency key, kept alive while the inner
//! service works, and the outcome recorded, so that later duplicates are answered from it.
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
//!     // what does not decode never takes a lock
//!     .layer(DecodeLayer::json())
//!     // one lock for each payment, renewed while the handler runs
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), "payments", key::field(|p: &Payment| &p.id))?)
//!     // a slow handler fails its attempt
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
//! * [`IdempotencyLayer`] makes an [`IdempotencyService`], whose response is a [`ResponseFuture`];
//!   [`policy`] and [`reply`] are its choices, [`IdempotencyError`] what it answers when there is no
//!   outcome. [`Guard`] is the layer around a plain function.
//! * [`BatchLayer`] is for handlers that take many requests at a time.
//! * [`LockKeeper`] sends all operations to the store: it batches, renews, and settles until it is answered.
//! * [`store`]: the trait behind which entries are kept; [`MemoryStore`] is the embedded one.

mod backoff;
mod batch;
mod beside;
mod defaults;
mod error;
mod future;
mod guard;
mod keeper;
mod layer;
mod memory;
pub mod policy;
pub mod reply;
mod service;
pub mod store;
mod wait_for_lock;

pub use self::backoff::Backoff;
pub use self::batch::{BatchError, BatchFuture, BatchLayer, BatchService};
pub use self::defaults::Defaults;
pub use self::error::{Exhausted, Failed, IdempotencyError, Panicked, ReplyTooLarge};
pub use self::future::ResponseFuture;
pub use self::guard::Guard;
pub use self::keeper::{HeldLock, IntoKeeper, LockKeeper, Report, Settled, Settling};
pub use self::layer::IdempotencyLayer;
pub use self::memory::MemoryStore;
pub use self::reply::{ReplyCipher, ReplyCodec};
pub use self::service::{CloneableService, IdempotencyService};
pub use self::store::{BoxStore, Cached, EntryStore, Stepped, Store, StoreError, StoreErrorKind};
pub use self::wait_for_lock::WaitForLock;
