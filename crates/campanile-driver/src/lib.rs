//! The driver of Campanile's consumers: decides which record is started next, and what is committed.

#[doc(hidden)]
pub mod backoff;
#[doc(hidden)]
pub mod driver;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod flood_limit;
#[doc(hidden)]
pub mod give_up;
#[doc(hidden)]
pub mod handle;
#[doc(hidden)]
pub mod health;
#[doc(hidden)]
pub mod order;
#[doc(hidden)]
pub mod policies;
#[doc(hidden)]
pub mod rebalance;
#[doc(hidden)]
pub mod routes;
#[doc(hidden)]
pub mod seek;
#[doc(hidden)]
pub mod serve;
mod signals;
#[doc(hidden)]
pub mod status;
#[doc(hidden)]
pub mod summary;
#[doc(hidden)]
pub mod telemetry;
#[doc(hidden)]
pub mod thread;
#[doc(hidden)]
pub mod wall_clock;

pub use self::error::ConsumerError;
pub use self::flood_limit::FloodLimit;
pub use self::handle::{Handle, Paused};
pub use self::health::{Health, HealthService, Unhealthy};
pub use self::order::ProcessingOrder;
pub use self::rebalance::{Rebalance, Rebalances, TopicPartition};
pub use self::routes::{NoRoute, Routes};
pub use self::seek::{SeekError, SeekTo};
pub use self::serve::Serve;
pub use self::status::{ConsumerStage, PartitionStatus, Status, StoppedPartition};
pub use self::summary::Summary;
