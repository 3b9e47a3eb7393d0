//! The verb `verify`.

use std::path::PathBuf;

use campanile_admin::AdminError;
use campanile_core::{ConfigError, error};
use campanile_history::{History, judge};
use clap::Args;

use crate::exit::Exit;
use crate::print::{print, print_json};

/// Judge a history: what was lost, what ran twice and why, and what was out of order
///
/// A history is what producers, consumers, the broker and the store recorded as JSON lines; see
/// docs/history-format.md. No server is needed, and nothing is changed.
///
/// The text counts the runs again of each cause; with --json, each has its cause and its events. The
/// first 10 violations of each rule are shown, and all with --json.
///
/// The exit code is 0 if the history is sound, 1 if it violates a rule, 2 if it cannot be read, and 3
/// if the verdict cannot be written.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file, or a folder whose .jsonl files are one history
    #[arg(value_name = "HISTORY")]
    history: PathBuf,
    /// Print the verdict as a line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Exit, AdminError> {
    let history = History::read(&arguments.history).map_err(|unreadable| {
        let texts: Vec<String> = error::sources(&unreadable).map(ToString::to_string).collect();
        ConfigError::new(texts.join(": "))
    })?;
    let verdict = judge(&history);
    match arguments.json {
        true => print_json(&verdict)?,
        false => print(&verdict)?,
    }
    Ok(if verdict.is_sound() { Exit::Done } else { Exit::Attention })
}
