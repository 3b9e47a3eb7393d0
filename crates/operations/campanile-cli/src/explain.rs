//! The verb `explain`.

use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::explain::{Cause, Explain};
use campanile_core::Coordinates;
use clap::Args;

use crate::exit::Exit;
use crate::options::{KafkaOptions, KeySourceOptions, NamespaceOption, StoreOptions};
use crate::print::{print, print_json};

/// Explain why a record ran, waits, was a duplicate, or did not run
///
/// Reads the record, finds its key as the application does, and reads the entry of the key and the
/// offset of the group. Joins no group, commits nothing and writes nothing.
///
/// The exit code is 1 if there is no such record, or if the value in the store is no entry of this
/// version.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The coordinates of the record
    #[arg(value_name = "TOPIC/PARTITION@OFFSET")]
    record: Coordinates,
    /// The consumer group; its committed offset says whether the record is finished
    #[arg(long)]
    group: Option<String>,
    /// The maximum attempts of the layer, to tell a record with none left
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u16>,
    /// How long to wait for an answer of the brokers
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: NamespaceOption,
    #[command(flatten)]
    key: KeySourceOptions,
    #[command(flatten)]
    kafka: KafkaOptions,
    #[command(flatten)]
    store: StoreOptions,
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let kafka = arguments.kafka.config()?;
    let key = arguments.key.source()?;
    let store = arguments.store.connect().await?;
    let mut explain = Explain::new(arguments.record, arguments.namespace.namespace)
        .with_timeout(arguments.timeout);
    if let Some(group) = arguments.group {
        explain = explain.with_group(group);
    }
    if let Some(attempts) = arguments.max_attempts {
        explain = explain.with_max_attempts(attempts);
    }
    let explanation = explain.run(&kafka, &store, &key).await?;
    match arguments.json {
        true => print_json(&explanation)?,
        false => print(&explanation)?,
    }
    // Without its key, the record's fate is unknown: the options may be wrong.
    let is_unknown =
        matches!(explanation.cause, Cause::NoKey | Cause::InvalidKey | Cause::Unreadable);
    let is_explained = explanation.cause.has_record() && !is_unknown;
    Ok(if is_explained { Exit::Done } else { Exit::Attention })
}
