//! The verb `migrate`.

use campanile_admin::AdminError;
use campanile_admin::schema::MigrationPlan;
use clap::Args;
use serde::Serialize;

use crate::exit::Exit;
use crate::options::StoreOptions;
use crate::print::{print, print_json};

/// Migrate the schema in Postgres to the version of this command
///
/// Prints the pending migrations, and runs none without --yes. They run in one transaction, as the user
/// in the URL of the store, who becomes the owner of what they create: use the owner of the schema.
/// Processes of the application may be connected meanwhile. Grant the new functions to their users
/// afterwards.
///
/// The exit code is 0 if nothing is pending any more, and 1 if migrations are pending or the schema is
/// of a later version.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run the migrations
    #[arg(long)]
    yes: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        plan: &'a MigrationPlan,
        done: bool,
    }
    let plan = MigrationPlan::new(arguments.store.config()?).await?;
    if !arguments.json {
        print(&plan)?;
    }
    let is_pending = plan.pending().next().is_some();
    let done = is_pending && arguments.yes;
    if done {
        plan.apply().await?;
    }
    if arguments.json {
        print_json(&Line { plan: &plan, done })?;
    } else if done {
        print(&"done")?;
    } else if is_pending {
        print(&"nothing changed; to do it, add --yes")?;
    }
    let needs_attention = plan.is_newer() || is_pending && !done;
    Ok(if needs_attention { Exit::Attention } else { Exit::Done })
}
