//! The verb `inspect`.

use campanile_admin::AdminError;
use campanile_admin::entries::{EntryReport, inspect};
use clap::Args;

use crate::exit::Exit;
use crate::options::{KeyOptions, StoreOptions};
use crate::print::{print, print_json};

/// Show what the store keeps for a key: its state, attempts, process, record, last error and times
///
/// Nothing is written. Times are in UTC, by the store's clock.
///
/// The exit code is 0 if there is an entry, and 1 if there is none or the value is no entry of this
/// version.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    key: KeyOptions,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let (store_key, key) = arguments.key.keys()?;
    let store = arguments.store.connect().await?;
    let mut report = inspect(&store, &store_key).await?;
    if let Some(key) = &key {
        report = report.with_key(key);
    }
    match arguments.json {
        true => print_json(&report)?,
        false => print(&report)?,
    }
    Ok(exit(&report))
}

/// A value that is no entry, or none at all, needs attention.
pub(crate) fn exit(report: &EntryReport) -> Exit {
    if report.entry().is_some() { Exit::Done } else { Exit::Attention }
}
