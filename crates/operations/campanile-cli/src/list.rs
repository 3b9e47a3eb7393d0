//! The verb `list`.

use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::entries::{EntryPages, EntryQuery};
use clap::Args;

use crate::exit::Exit;
use crate::inspect;
use crate::options::{NamespaceOption, ScanOptions, StateOption, StoreOptions};
use crate::print::{print_json_while_read, print_while_read};

/// List the entries of a namespace, in no particular order
///
/// Each line begins with the key, or with its digest if the entry does not store the key: that of a
/// COMPLETED entry is not stored by default. Nothing is written, and the store is never blocked for
/// long. An entry that changes meanwhile may be listed twice. Values that are no entries of this
/// version are always listed.
///
/// The exit code is 1 if there are such values.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only entries in this state; `stuck` is `processing` with an expired lock, which nobody has
    /// taken over. May be repeated. By default, all states
    #[arg(long, value_name = "STATE")]
    state: Vec<StateOption>,
    /// Only entries that were completed or given up, or in other states created, at least this long ago,
    /// such as 1h
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older: Option<Duration>,
    /// Only entries that were completed or given up, or in other states created, at most this long ago
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    newer: Option<Duration>,
    /// Only entries with this text in their last error, in the same case
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Stop after this many entries
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    /// Print a line of JSON for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: NamespaceOption,
    #[command(flatten)]
    scan: ScanOptions,
    #[command(flatten)]
    store: StoreOptions,
}

impl Arguments {
    pub(crate) fn query(&self) -> EntryQuery {
        let all = EntryQuery::new(self.namespace.namespace.clone());
        let mut query = self.state.iter().fold(all, |query, state| state.select(query));
        if let Some(age) = self.newer {
            query = query.with_max_age(age);
        }
        if let Some(age) = self.older {
            query = query.with_min_age(age);
        }
        if let Some(text) = &self.error {
            query = query.with_error(text.as_str());
        }
        query
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let store = arguments.store.connect().await?;
    let mut pages =
        EntryPages::new(&store, arguments.query()).with_max_share(arguments.scan.max_share);
    let mut left = arguments.limit.unwrap_or(usize::MAX);
    let mut exit = Exit::Done;
    while left > 0
        && let Some(page) = pages.next().await?
    {
        for report in page.iter().take(left) {
            match arguments.json {
                true => print_json_while_read(report)?,
                false => print_while_read(&report.to_line())?,
            }
            if inspect::exit(report) != Exit::Done {
                exit = Exit::Attention;
            }
        }
        left = left.saturating_sub(page.len());
    }
    Ok(exit)
}
