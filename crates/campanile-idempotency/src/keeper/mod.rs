//! The lock keeper: acquires, renews and settles the locks of the layers that share it.
//!
//! [`LockKeeper`] is a handle of a state machine ([`state`]) behind a mutex, which callers change on
//! their own threads ([`shared`]). No method of it waits or calls the store.
//!
//! * **Calls on the caller's runtime.** The first command in the queue spawns a task there, which lets
//!   run what is runnable and then sends all commands that have come together. A full batch is sent at
//!   once, without a task if the store answers at once, as one in memory does.
//! * **A [`background`] thread** does what a blocked or ended runtime must not delay: renewals at a third
//!   of the time to live, in batches; noticing lost locks; giving up calls that take too long; repeats;
//!   and what no runtime has sent. It has connections of its own. It sleeps until its earliest timer, and
//!   a later one does not wake it: no record costs a wake-up.
//! * **One acquisition per key.** A later request for a key that is held here is answered as locked, and,
//!   when it has waited, from how the holder has ended, without a command to the store.
//! * **One command per key at a time.** A settlement is sent after the renewal before it was answered.
//! * **Settling until it is answered.** A completion whose reply was lost is repeated; only the store's
//!   answer decides.
//! * **Bounds.** While the store is unavailable, what is kept of abandoned requests is bounded; beyond
//!   that no further key is acquired.
//! * **Cancellation.** A dropped future hands its lock over with one synchronous call; an acquire whose
//!   answer is unknown is cancelled by its nonce.

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
