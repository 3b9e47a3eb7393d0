//! The driver: takes records from a [`Source`], starts attempts at them, and has the source commit
//! the offsets of finished records. The driver does not depend on a Kafka client.
//!
//! | | runs on | does |
//! |---|---|---|
//! | source, scheduler, budget, commits | the driver's own thread | never blocks, and runs no user code |
//! | attempts | the program's runtime, spawned from the driver's thread | decode, key, acquire, handler, settle |
//!
//! The thread is woken by the source and by attempts that end. It is not a worker of the program's
//! runtime, so user code cannot keep it from serving other partitions, rebalances or the shutdown.
//!
//! * `source`: the trait that a Kafka client implements; `assignment`: the state of one partition while
//!   it is assigned; `delay`: how long its records wait; `log_change`: what may happen to its log.
//! * `epilogue`: the trait of what happens to a record that was not processed; `sink`: the trait of what
//!   a processed one hands over, to be committed with its offset.
//! * `scheduler`: queues, timers, retries, the breaker, drains.
//! * `run`: the task that runs records, each in an `attempt`; `waker` and `reports`: the connection
//!   between this task and the scheduler.
//! * `event_loop`: the loop of the driver's thread; `revocation`, `shutdown`: what it does before it gives
//!   partitions up; `seek`: how a partition is moved to another position.
//! * `intake`, `backpressure`, `budget`: how much is read, and from which partitions.
//! * `watermark`, `commit_schedule`: which offsets are committed, and when; `lag`: what is left.
//! * `control`, `status`: the state that a [`Handle`](crate::Handle) sets and reads.

mod assignment;
mod attempt;
mod backpressure;
mod budget;
mod commit_schedule;
mod control;
mod delay;
mod epilogue;
mod event_loop;
mod intake;
mod lag;
mod log_change;
mod offset;
mod reports;
mod revocation;
mod run;
mod scheduler;
mod seek;
mod shutdown;
#[cfg(test)]
mod simulation;
mod sink;
mod source;
mod span;
mod status;
mod task;
mod verdict;
mod waker;
mod watermark;

use std::time::Duration;

pub use self::assignment::{Assignment, AssignmentId};
pub use self::budget::{Amount, Usage};
pub use self::control::{Control, DriverControl, PauseTarget, Shutdown};
pub use self::delay::Delay;
pub use self::epilogue::{
    Epilogue, EpilogueResult, Failure, GivenUp, RetryElsewhere, Unfinished,
};
pub use self::event_loop::{Driver, Settings};
pub use self::log_change::{LogChange, LogChanged};
pub use self::reports::{Report, Reports};
pub use self::scheduler::{QueueId, Services};
pub use self::sink::{Item, ItemResult, Sink};
pub use self::source::{CommitResult, CommitStart, Event, Received, Source};
pub use self::span::{RecordSpans, SpanKind};
pub use self::status::DriverStatus;

/// The fraction of the budget below which a full consumer reads again.
const RESUME_LEVEL: f64 = 0.75;

/// How long to wait until the locks of dropped futures are released, so that the next owner finds them
/// free. If the store is unavailable, the locks expire by themselves.
const LOCK_RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the consumer may take to leave its group. Unreachable brokers do not delay the end of
/// serving for longer.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
