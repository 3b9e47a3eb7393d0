//! Reads, lists, repairs and deletes the entries of a store.
//!
//! [`inspect`] and [`EntryPages`] only read. A [`RepairPlan`] says what it will do, and does it only if the
//! entry is still the one that it was made for. A [`Purge`] deletes many entries.
//!
//! ```
//! use campanile_admin::entries::{self, RepairOutcome, RepairPlan};
//! use campanile_core::{IdempotencyKey, StoreKey};
//! use campanile_idempotency::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let key = IdempotencyKey::new("p-1").ok_or("empty")?;
//! let key = StoreKey::new("billing.payments".try_into()?, &key);
//! println!("{}", entries::inspect(&store, &key).await?);
//!
//! let plan = RepairPlan::reopen(&store, &key, false).await?;
//! println!("{plan}");
//! assert_eq!(plan.apply(&store).await?, RepairOutcome::Impossible); // there is no entry
//! # Ok(())
//! # }
//! ```

mod list;
mod purge;
mod repair;
mod report;

pub use self::list::{EntryPages, EntryQuery};
pub use self::purge::{EntryCount, Purge, PurgeReport};
pub(crate) use self::repair::is_unlocked;
pub use self::repair::{RepairOutcome, RepairPlan};
pub use self::report::{EntryReport, inspect, parse_digest};
pub(crate) use self::report::{is_reopened, printable};
