//! A store with injected faults, as a network or a server would cause them.
//!
//! ```
//! use campanile_idempotency::{LockKeeper, MemoryStore, Runner};
//! use campanile_core::BoxError;
//! use campanile_test::TestClock;
//! use campanile_test::faults::{Fault, FaultyStore};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let clock = TestClock::new();
//! let store = FaultyStore::new(MemoryStore::with_clock(clock.store_clock()));
//! let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
//! tokio::spawn(task);
//! let runner = Runner::new(&keeper, "jobs")?;
//!
//! // The completion takes effect, but its answer is lost. The keeper repeats the command.
//! store.inject_next_of("complete", Fault::LoseReply);
//! runner.run("job-1", async |_| Ok::<_, BoxError>(())).await?;
//! assert_eq!(store.count("complete"), 2);
//! # Ok(())
//! # }
//! ```

mod call;
mod fault;
mod rules;
mod store;

pub use self::call::Call;
pub use self::fault::Fault;
pub use self::store::FaultyStore;
