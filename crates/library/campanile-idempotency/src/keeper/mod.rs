//! The lock keeper, which acquires, renews and settles the locks of the layers that share it.
//!
//! [`LockKeeper`] is a handle to a state machine ([`state`]) behind a mutex, which callers change
//! on their own threads ([`shared`]). None of its methods waits or calls the store.
//!
//! * **Calls on the caller's runtime.** The first command in the queue spawns a task there. The
//!   task lets other ready tasks run and then sends all commands that have been queued. A full
//!   batch is sent immediately, without a task if the store answers immediately, as an in-memory
//!   store does.
//! * **A [`background`] thread** does what a blocked or ended runtime must not delay. It renews
//!   locks in batches after a third of the TTL, detects lost locks, aborts calls that take too
//!   long, repeats commands, and sends what no runtime has sent. It has its own connections. It
//!   sleeps until its earliest timer, and at most 100 ms, and later timers do not wake it, so that
//!   processing a record causes no wake-up.
//! * **One acquisition per key.** A later request for a key that is held in this process is
//!   answered as locked. After it has waited, it is answered from the result of the first one,
//!   without a command to the store.
//! * **One command per key at a time.** A settlement is sent after the previous renewal was
//!   answered.
//! * **Steps.** The record of a handler's step is sent as a command of the lock, and repeated while the
//!   lock has time for another try.
//! * **Settling until answered.** A completion is repeated if its reply was lost; only the store's
//!   answer decides.
//! * **Bounds.** While the store is unavailable, the state of abandoned requests is bounded. At the
//!   limit, no further key is acquired.
//! * **Cancellation.** A dropped future returns its lock with one synchronous call. An acquire
//!   without an answer is cancelled by its nonce.

mod background;
mod calls;
mod deferred;
mod handle;
mod held;
mod instance;
mod lock_events;
mod request;
mod results;
mod settled;
mod shared;
mod slot;
mod state;
mod steps;
mod timers;

pub use self::handle::{IntoKeeper, LockKeeper, ShutdownReport};
pub(crate) use self::held::stopped_error;
pub use self::held::{HeldLock, Settling};
pub(crate) use self::request::{Acquisition, LockKey, LockSettings, RunSite, Settlement};
pub use self::settled::SettledFuture;
pub(crate) use self::settled::wait_at_most;
pub(crate) use self::steps::RecordError;
