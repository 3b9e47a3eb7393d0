//! The verb `observe`.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use campanile_admin::AdminError;
use campanile_admin::observe::{Observe, ObserveReport, Position};
use clap::Args;
use serde::Serialize;

use crate::exit::Exit;
use crate::options::{KafkaOptions, KeySourceOptions, NamespaceOption, StoreOptions};
use crate::print::{print, print_json};

/// Find what an observed consumer has lost, skipped or repeated, without a guard
///
/// Compares the records of a topic with the offsets that the consumer's group has committed and with the
/// entries that the consumer left while it was observed. Finds records that are finished by their offset
/// and not completed by their entry, records with the key of an earlier one, and records without a valid
/// key, and counts what the guard would do with the records. Joins no group, commits nothing and writes
/// nothing.
///
/// Records that were processed before the consumer was observed, or whose entries have expired, have no
/// entry: choose --from accordingly. A consumer that commits before it processes leaves records that are
/// finished and not begun for a moment: run the command again, and what is found again is lost.
///
/// Each different key takes about 100 bytes of memory, and one request to the store if a record of it is
/// finished.
///
/// The exit code is 1 if there are findings, or if a committed offset is beyond the end of its partition.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The topic
    #[arg(value_name = "TOPIC")]
    topic: String,
    /// The consumer group
    #[arg(long)]
    group: String,
    /// The first record: a time such as 2030-01-31T09:00:00Z, a time ago such as 24h, an offset, or start
    #[arg(long, value_name = "TIME|OFFSET", default_value = "24h", value_parser = parse_position)]
    from: Position,
    /// The record behind the last one, as for --from. Default: the end of each partition at the start
    #[arg(long, value_name = "TIME|OFFSET", value_parser = parse_position)]
    to: Option<Position>,
    /// Only this partition
    #[arg(long, value_name = "NUMBER")]
    partition: Option<i32>,
    /// Read at most this many entries per second
    #[arg(long, value_name = "ENTRIES")]
    rate: Option<NonZeroU32>,
    /// How long to wait for an answer of the brokers
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Print JSON: a line for each finding, and a line with the summary
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

impl Arguments {
    pub(crate) fn observe(&self) -> Observe {
        let namespace = self.namespace.namespace.clone();
        let mut observe = Observe::new(self.topic.as_str(), self.group.as_str(), namespace)
            .with_from(self.from)
            .with_timeout(self.timeout);
        if let Some(to) = self.to {
            observe = observe.with_to(to);
        }
        if let Some(partition) = self.partition {
            observe = observe.with_partition(partition);
        }
        if let Some(rate) = self.rate {
            observe = observe.with_rate(rate);
        }
        observe
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<Exit, AdminError> {
    #[derive(Serialize)]
    struct Line<'a> {
        summary: &'a ObserveReport,
    }
    let kafka = arguments.kafka.config()?;
    let (observe, is_json) = (arguments.observe(), arguments.json);
    let key = arguments.key.source()?;
    let store = arguments.store.connect().await?;
    let print_finding = |finding: &_| if is_json { print_json(finding) } else { Ok(()) };
    let report = observe.run(&kafka, &store, &key, print_finding).await?;
    match is_json {
        true => print_json(&Line { summary: &report })?,
        false => print(&report)?,
    }
    Ok(if report.is_sound() { Exit::Done } else { Exit::Attention })
}

fn parse_position(text: &str) -> Result<Position, &'static str> {
    if text == "start" {
        return Ok(Position::Start);
    }
    if let Ok(offset) = text.parse::<u64>() {
        return Ok(Position::Offset(i64::try_from(offset).unwrap_or(i64::MAX)));
    }
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(Position::Time(now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)));
    }
    let time = humantime::parse_rfc3339_weak(text);
    time.map(Position::Time).map_err(|_| {
        "expected a time such as 2030-01-31T09:00:00Z, a time ago such as 24h, an offset, or start"
    })
}

#[expect(clippy::disallowed_methods, reason = "compared with the clocks of producers only")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_a_time_an_age_or_an_offset() {
        assert_eq!(parse_position("start"), Ok(Position::Start));
        assert_eq!(parse_position("42"), Ok(Position::Offset(42)));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(parse_position("1970-01-01T00:16:40Z"), Ok(Position::Time(time)));
        let Ok(Position::Time(hour_ago)) = parse_position("1h") else { panic!("no time") };
        assert!(hour_ago <= now() - Duration::from_secs(3_600));
        for wrong in ["", "-1", "yesterday", "1 x"] {
            assert!(parse_position(wrong).is_err(), "{wrong}");
        }
    }
}
