//! The driver of Campanile's consumers: takes records from a [`Source`](source::Source), starts attempts
//! at them, and has the source commit the offsets of finished records. It depends on no Kafka client.
//!
//! | | runs on | does |
//! |---|---|---|
//! | source, scheduler, budget, commits | the driver's own thread | never blocks, and runs no user code |
//! | attempts | the program's runtime, spawned from the driver's thread | decode, key, acquire, handler, settle |
//!
//! The thread is woken by the source and by attempts that end. It is not a worker of the program's
//! runtime, so user code cannot keep it from serving other partitions, rebalances or the shutdown.
//!
//! # Layout
//!
//! From the bottom to the top; no module uses one that is listed below it.
//!
//! * `error`, `order`, `summary`, `rebalance`, `seek`, `status`, `flood_limit`: the types of the public API.
//! * `source`: the trait that a Kafka client implements, and an assigned partition.
//! * `epilogue`: the trait of what happens to a record that was not processed.
//! * `control`: the state that a [`Handle`] sets and reads.
//! * `run`: the task that runs records, each in an `attempt`. `routes`: their services.
//! * `watermark`: which offset may be committed.
//! * `scheduler`: queues, timers, retries, the breaker, drains.
//! * `event_loop`: the loop of the driver's thread, with the intake of records, the schedule of commits,
//!   revocation, seek and shutdown.
//! * `handle`, `health`, `serve`: what a program does with a running driver.

mod backoff;
mod config;
mod control;
mod driver;
pub mod epilogue;
mod error;
mod event_loop;
mod flood_limit;
mod handle;
mod health;
mod order;
mod paused;
#[doc(hidden)]
pub mod private;
mod probes;
mod rebalance;
mod reports;
mod routes;
mod run;
mod scheduler;
mod seek;
mod serve;
mod signals;
mod skip_at;
pub mod source;
mod source_context;
mod span;
mod status;
mod summary;
mod telemetry;
mod wall_clock;
mod watermark;

pub use self::config::{Classifiers, DriverConfig};
pub use self::driver::Driver;
pub use self::error::{ConsumerError, NoRoute};
pub use self::flood_limit::FloodLimit;
pub use self::handle::Handle;
pub use self::health::{Health, Unhealthy};
pub use self::order::ProcessingOrder;
pub use self::paused::Paused;
pub use self::probes::HealthService;
pub use self::rebalance::{Rebalance, Rebalances, TopicPartition};
pub use self::routes::{Router, Routes};
pub use self::seek::{SeekError, SeekTo};
pub use self::serve::Serve;
pub use self::skip_at::SkipAt;
pub use self::source_context::SourceContext;
pub use self::status::{
    ConsumerStage, PartitionStatus, Status, StoppedPartition, UnavailableDependency,
};
pub use self::summary::Summary;
