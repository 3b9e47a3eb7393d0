//! The verb `redrive`.

mod audit;
mod output;
mod progress;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use campanile_admin::redrive::{LetterFilter, Redrive, RedriveSummary};
use campanile_admin::{AdminError, StoreConfig};
use clap::Args;

use self::audit::Audit;
use self::output::{print_preview, print_summary};
use self::progress::Progress;
use crate::exit::Exit;
use crate::options::{COMMAND_TIMEOUT, KafkaOptions, StoreOptions, parse_pair};
use crate::signals::stop_requested;

/// Bring dead letters back: reopen their keys, and produce their records to their topics again
///
/// For each letter up to the current end of the topic, the store is asked first, so that no event is
/// processed twice. A letter is reopened (its key gets all its attempts again, and its record is back
/// in its topic), only produced (its key had been reopened before, so only its record is produced
/// back), skipped (nothing is left to do, such as for a completed key), deferred (its key is being
/// processed; run again later) or parked (its record cannot be produced back; the reason is printed).
/// Once the cause is fixed, --group with a new name handles them again, with all others that the
/// filters select.
///
/// The command can be stopped or killed at any time. The next run with the same topic, store,
/// filters and choices resumes; progress is kept as the offsets of a consumer group. Letters stay in their topic.
/// Several runs at a time share the topic's partitions. The name of the group is printed to standard
/// error, and so is the progress: as a bar on a terminal, and otherwise as a line every 10 seconds.
///
/// The exit code is 0 if every letter was reopened, produced, skipped or filtered out, and 1 if
/// letters were parked or deferred.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The dead-letter topic
    #[arg(value_name = "DEAD-LETTER-TOPIC")]
    topic: String,
    /// Print what would be done, and why the letters were given up, and change nothing. The store is
    /// only read
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: a line for each letter, unless --audit is given, and a line with the summary
    #[arg(long)]
    json: bool,
    /// Append a line of JSON for each letter to this file
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    /// Only letters with this cause (failed, exhausted, missing-key, invalid-key, mismatch,
    /// undecodable, error), or with this text in their error
    #[arg(long, value_name = "TEXT", help_heading = "Filters")]
    reason: Option<String>,
    /// Only records with a timestamp at or after this time, such as 2030-01-31T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak, help_heading = "Filters")]
    since: Option<SystemTime>,
    /// Only records with a timestamp before this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak, help_heading = "Filters")]
    until: Option<SystemTime>,
    /// Only letters with this idempotency key
    #[arg(long, value_name = "KEY", help_heading = "Filters")]
    key: Option<String>,
    /// Only letters in this partition of the dead-letter topic
    #[arg(long, value_name = "NUMBER", help_heading = "Filters")]
    partition: Option<i32>,
    /// Only letters with this header. May be repeated; all must match
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_pair, help_heading = "Filters")]
    headers: Vec<(String, String)>,

    /// Handle at most this many letters per second, on average
    #[arg(long, value_name = "LETTERS", help_heading = "Limits")]
    rate: Option<NonZeroU32>,
    /// Handle at most this many letters
    #[arg(long, value_name = "LETTERS", help_heading = "Limits")]
    max: Option<u64>,
    /// Park letters whose record was brought back this many times
    #[arg(long, value_name = "TIMES", default_value_t = 3, help_heading = "Limits")]
    max_redrives: u32,
    /// How long to wait, in total, for keys that are being processed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration, help_heading = "Limits")]
    patience: Duration,
    /// How long Kafka or the store may be away
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration, help_heading = "Limits")]
    timeout: Duration,

    /// Copy parked letters to this topic. It must exist
    #[arg(long, value_name = "TOPIC", help_heading = "Choices")]
    parking_topic: Option<String>,
    /// Also produce the records of letters that held no lock: undecodable, without a valid key, or
    /// with the key of another payload. Nothing prevents that such a record is processed twice
    #[arg(long, help_heading = "Choices")]
    without_key: bool,
    /// Also produce the records of letters whose key has no entry in the store, because the entry has
    /// expired or was lost. Check first that this is the store of the consumer
    #[arg(long, help_heading = "Choices")]
    without_entry: bool,
    /// The consumer group that keeps the progress. A new group handles all letters again, and skips those
    /// whose keys were locked since they were brought back. Letters without a lock or an entry, and those
    /// whose keys are coordinates, are produced again: select letters by the filters. By default, its name
    /// is made of the topic, the URL of the store without credentials, and of what decides which letters are
    /// brought back, and where others are parked
    #[arg(long, value_name = "GROUP", help_heading = "Choices")]
    group: Option<String>,

    #[command(flatten)]
    kafka: KafkaOptions,
    #[command(flatten)]
    store: StoreOptions,
}

impl Arguments {
    pub(crate) fn redrive(&self) -> Redrive {
        let filter = LetterFilter {
            reason: self.reason.clone(),
            since: self.since,
            until: self.until,
            key: self.key.clone().map(String::into_bytes),
            partition: self.partition,
            headers: self.headers.clone(),
        };
        let mut redrive = Redrive::new(self.topic.as_str())
            .with_filter(filter)
            .with_max_redrives(self.max_redrives)
            .with_patience(self.patience)
            .with_timeout(self.timeout);
        if let Some(rate) = self.rate {
            redrive = redrive.with_rate(rate);
        }
        if let Some(max) = self.max {
            redrive = redrive.with_max(max);
        }
        if let Some(topic) = &self.parking_topic {
            redrive = redrive.with_parking_topic(topic.as_str());
        }
        if let Some(group) = &self.group {
            redrive = redrive.with_group(group);
        }
        if self.without_key {
            redrive = redrive.with_letters_without_key();
        }
        if self.without_entry {
            redrive = redrive.with_letters_without_entry();
        }
        redrive
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    let kafka = arguments.kafka.config()?;
    let store_name = StoreConfig::name_of(&arguments.store.url()?);
    let redrive = arguments.redrive().with_store_name(store_name);
    let store = arguments.store.config()?;
    let store = store.with_connect_timeout(arguments.timeout).with_command_timeout(COMMAND_TIMEOUT);
    if arguments.dry_run {
        let preview = redrive.preview(&kafka, &store.connect_to_inspect().await?).await?;
        print_preview(&preview, arguments.json)?;
        return Ok(Exit::Done);
    }
    let progress = Progress::new(&arguments.topic, &redrive.group());
    let (audit, bar) = (arguments.audit.as_deref(), progress.bar().clone());
    let mut audit = Audit::open(audit, arguments.json, bar)?;
    let store = store.connect_to_inspect().await?;
    let result = tokio::select! {
        result = redrive.run(&kafka, &store, &mut audit, stop_requested()) => result,
        never = progress.print_lines() => match never {},
    };
    progress.bar().finish_and_clear();
    let summary = result?;
    print_summary(&arguments, &summary)?;
    Ok(exit(&summary))
}

fn exit(summary: &RedriveSummary) -> Exit {
    if summary.interrupted {
        Exit::Interrupted
    } else if summary.parked > 0 || summary.deferred > 0 {
        Exit::Attention
    } else {
        Exit::Done
    }
}
