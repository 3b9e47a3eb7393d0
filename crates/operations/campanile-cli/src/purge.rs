//! The verb `purge`.

use std::num::NonZeroU32;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::entries::{EntryQuery, Purge, PurgeReport};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;
use crate::options::{NamespaceOption, ScanOptions, StateOption, StoreOptions};
use crate::print::{print, print_json};
use crate::signals::stop_requested;

/// Delete entries of a namespace before their retention ends
///
/// Counts the entries and their bytes, and deletes none without --yes. A later delivery of a deleted
/// key is processed again, also if it was COMPLETED, and a FAILED key gets all its attempts again.
///
/// An entry is deleted only if it is still the one that was read. Entries whose lock has not expired
/// are never deleted, nor those granted within the last minute, nor values that are no entries of this
/// version. The command can be stopped or killed at any time; run it again for the rest.
///
/// The exit code is 0 if all selected entries are deleted, or none is selected, and 1 if some are left.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("selection").required(true)))]
pub(crate) struct Arguments {
    /// Entries in this state; `stuck` is PROCESSING with an expired lock. May be repeated
    #[arg(long, value_name = "STATE", group = "selection")]
    state: Vec<StateOption>,
    /// Entries in all these states
    #[arg(long, group = "selection")]
    all: bool,
    /// Only entries that were completed or given up, or in other states created, at least this long ago,
    /// such as 7d
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older: Option<Duration>,
    /// Delete at most this many entries per second
    #[arg(long, value_name = "ENTRIES")]
    rate: Option<NonZeroU32>,
    /// Delete the entries
    #[arg(long)]
    yes: bool,
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

impl Arguments {
    pub(crate) fn purge(&self) -> Purge {
        let all = EntryQuery::new(self.namespace.namespace.clone());
        let mut query = self.state.iter().fold(all, |query, state| state.select(query));
        if let Some(age) = self.older {
            query = query.with_min_age(age);
        }
        let purge = Purge::new(query).with_max_share(self.scan.max_share);
        match self.rate {
            Some(rate) => purge.with_rate(rate),
            None => purge,
        }
    }

    fn print(&self, report: &PurgeReport) -> Result<(), AdminError> {
        print(&format!("namespace {}\n{report}", self.namespace.namespace))
    }

    /// Prints what was deleted, or would be.
    fn print_json(&self, report: &PurgeReport, done: bool) -> Result<(), AdminError> {
        #[derive(Serialize)]
        struct Line<'a> {
            namespace: &'a str,
            done: bool,
            #[serde(flatten)]
            report: &'a PurgeReport,
        }
        let namespace = self.namespace.namespace.as_str();
        print_json(&Line { namespace, done, report })
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let purge = arguments.purge();
    let store = arguments.store.connect().await?;
    if !arguments.yes {
        let preview = purge.preview(&store).await?;
        let has_any = preview.deleted().entries > 0;
        match arguments.json {
            true => arguments.print_json(&preview, false)?,
            false => {
                arguments.print(&preview)?;
                print(&if has_any { PLAN } else { "nothing to delete" })?;
            }
        }
        return Ok(if has_any || is_left(&preview) { Exit::Attention } else { Exit::Done });
    }
    // Draws nothing if standard error is not a terminal.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {pos} deleted, {per_sec}");
    let bar = bar.with_style(style.unwrap_or(ProgressStyle::default_spinner()));
    let progress = |report: &PurgeReport| bar.set_position(report.deleted().entries);
    let result = purge.run(&store, progress, stop_requested()).await;
    let deleted = bar.position();
    bar.finish_and_clear();
    if result.is_err() {
        eprintln!("at least {deleted} entries were deleted; run the command again for the rest");
    }
    let report = result?;
    match arguments.json {
        true => arguments.print_json(&report, true)?,
        false => {
            arguments.print(&report)?;
            print(&if report.interrupted { "stopped" } else { "done" })?;
        }
    }
    Ok(match report.interrupted {
        true => Exit::Interrupted,
        false if is_left(&report) => Exit::Attention,
        false => Exit::Done,
    })
}

const PLAN: &str = "nothing deleted; a later delivery of a deleted key is processed again. To delete, \
    add --yes";

fn is_left(report: &PurgeReport) -> bool {
    report.kept + report.changed + report.unreadable > 0
}
