//! The verb `stats`.

use campanile_admin::AdminError;
use campanile_admin::entries::{EntryQuery, EntryStats};
use clap::Args;

use crate::exit::Exit;
use crate::options::{NamespaceOption, ScanOptions, StoreOptions};
use crate::print::{print, print_json};

/// Count the entries of a namespace by state, by age, and by when they expire
///
/// All entries are read, in slices, so that the store is never blocked for long. Bytes are an estimate
/// of the memory that the entries take: their encoded values, without their keys and what the store
/// adds to each.
///
/// The exit code is 1 if there are values that are no entries of this version.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: NamespaceOption,
    #[command(flatten)]
    scan: ScanOptions,
    #[command(flatten)]
    store: StoreOptions,
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let store = arguments.store.connect().await?;
    let query = EntryQuery::new(arguments.namespace.namespace);
    let stats = EntryStats::count(arguments.scan.pages(&store, query)).await?;
    match arguments.json {
        true => print_json(&stats)?,
        false => print(&stats)?,
    }
    Ok(if stats.unreadable == 0 { Exit::Done } else { Exit::Attention })
}
