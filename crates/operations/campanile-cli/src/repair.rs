//! The verbs `reopen`, `unlock` and `expire`.

use std::time::Duration;

use campanile_admin::entries::{RepairOutcome, RepairPlan};
use campanile_admin::{AdminError, AnyStore};
use campanile_core::StoreKey;
use clap::Args;
use serde::Serialize;

use crate::exit::Exit;
use crate::options::{KeyOptions, StoreOptions};
use crate::print::{print, print_json};

/// Give a key that was given up all its attempts again
///
/// Prints the entry and what will happen, and changes nothing without --yes. The entry is changed only
/// if it is still the one that was printed. The next delivery of the key is then processed: produce
/// its record again, because the offset of a record that was given up is committed. `redrive` does
/// both for dead letters.
///
/// With --force, a key that is COMPLETED can be reopened, too: its handler then runs again. A key that
/// is being processed is never reopened.
///
/// The exit code is 0 if the entry was changed, and 1 if not.
#[derive(Debug, Args)]
pub(crate) struct Reopen {
    /// Also reopen a key that is COMPLETED, or that has failed and waits for its next attempt
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    repair: Repair,
}

/// Take the lock of a key from its owner
///
/// For an owner that hangs, if waiting for the end of its lock does not help, because it renews it.
/// Prints the entry and what will happen, and changes nothing without --yes. The lock is taken only
/// from the owner that was printed.
///
/// A handler that still runs continues until the next renewal of its lock, after at most a third of the
/// lock's TTL. Then it is dropped, unless the application has set OnLost::Notify, but code that blocks
/// a thread or was spawned continues. Its outcome is not recorded. The next delivery runs the handler
/// again, perhaps at the same time as the former owner, so its effect may happen twice, unless the
/// receiver compares fencing tokens: that of the next lock is higher. The attempt of the former owner
/// counts.
///
/// The exit code is 0 if the entry was changed, and 1 if not.
#[derive(Debug, Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    repair: Repair,
}

/// Change when the entry of a key expires
///
/// Prints the entry and what will happen, and changes nothing without --yes. The entry is changed only
/// if it is still the one that was printed. Once it has expired, the next delivery of the key is
/// processed, also if the key was COMPLETED, and a FAILED key has all its attempts again. The time
/// may also be later than now, such as before offsets are reset. The next attempt at the key sets it
/// anew.
///
/// A key that is being processed is refused, and a time less than a minute after its last grant.
///
/// The exit code is 0 if the entry was changed, and 1 if not.
#[derive(Debug, Args)]
pub(crate) struct Expire {
    /// When the entry expires, from now, such as 1h. 0s deletes it
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    after: Duration,
    #[command(flatten)]
    repair: Repair,
}

#[derive(Debug, Args)]
struct Repair {
    #[command(flatten)]
    key: KeyOptions,
    /// Change the entry
    #[arg(long)]
    yes: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

pub(crate) async fn reopen(arguments: Reopen) -> Result<Exit, AdminError> {
    let Reopen { force, repair } = arguments;
    repair.run(async |store, key| RepairPlan::reopen(store, key, force).await).await
}

pub(crate) async fn unlock(arguments: Unlock) -> Result<Exit, AdminError> {
    arguments.repair.run(async |store, key| RepairPlan::unlock(store, key).await).await
}

pub(crate) async fn expire(arguments: Expire) -> Result<Exit, AdminError> {
    let Expire { after, repair } = arguments;
    repair.run(async |store, key| RepairPlan::expire(store, key, after).await).await
}

impl Repair {
    async fn run(
        &self,
        plan: impl AsyncFnOnce(&AnyStore, &StoreKey) -> Result<RepairPlan, AdminError>,
    ) -> Result<Exit, AdminError> {
        let (store_key, key) = self.key.keys()?;
        let store = self.store.connect().await?;
        let mut plan = plan(&store, &store_key).await?;
        if let Some(key) = &key {
            plan = plan.with_key(key);
        }
        if !self.json {
            print(&plan)?;
        }
        let outcome = match self.yes {
            true => Some(plan.apply(&store).await?),
            false => None,
        };
        self.print_outcome(&plan, outcome)?;
        Ok(if outcome == Some(RepairOutcome::Done) { Exit::Done } else { Exit::Attention })
    }

    fn print_outcome(
        &self,
        plan: &RepairPlan,
        outcome: Option<RepairOutcome>,
    ) -> Result<(), AdminError> {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            plan: &'a RepairPlan,
            outcome: Option<RepairOutcome>,
        }
        match outcome {
            _ if self.json => print_json(&Line { plan, outcome }),
            Some(outcome) => print(&outcome),
            None if plan.is_possible() => print(&"nothing changed; to do it, add --yes"),
            None => print(&RepairOutcome::Impossible),
        }
    }
}
