//! The one task through which all operations on the store go.
//!
//! [`LockKeeper`] acquires, renews and settles the locks of the layers that share it, on a thread of
//! its own, so that a handler which blocks every thread of its runtime keeps its lock.
//!
//! * **It coalesces.** What arrives while a call is in flight travels together in the next one. There
//!   is no timer, so an idle system pays no latency.
//! * **It renews** all held locks in batches, at a third of their time to live.
//! * **One acquisition per key.** A later delivery of a key that is held here is told so, and, when it
//!   has waited for that, how it ended, without a command to the store.
//! * **It settles until it is answered.** A completion whose reply was lost is repeated; only the
//!   store's answer decides.
//! * **Nothing grows.** While the store is away, what is kept of requests that have left is bounded; beyond
//!   that no further key is acquired.
//! * **Nothing is left behind.** A future that is dropped hands its lock over with one synchronous
//!   send; an acquire whose answer is unknown is cancelled.

mod background;
mod calls;
mod deferred;
mod ends;
mod handle;
mod held;
mod request;
mod settled;
mod shared;
mod slot;
mod state;
mod timers;

pub use self::handle::{IntoKeeper, LockKeeper, Report};
pub(crate) use self::held::stopped;
pub use self::held::{HeldLock, Settling};
pub(crate) use self::request::{Acquisition, Settlement, Terms};
pub use self::settled::Settled;
pub(crate) use self::settled::wait_at_most;
