//! The offsets that the group has committed.

use std::time::Duration;

use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;

use super::client::{Client, REQUEST_TIMEOUT};
use super::group::add_group_error;
use super::topic::Topic;
use crate::doctor::finding::{FindingKind, Severity};
use crate::doctor::{Report, display};
use crate::kafka::{Offsets, fetch_committed};

/// Checks whether the committed offsets are in their partitions and, if `observation` is set, whether
/// they advance. Returns whether there are any, as far as it is known.
pub(super) fn check(
    client: &Client<'_>,
    topics: &[&Topic],
    subject: &str,
    observation: Option<Duration>,
    report: &mut Report,
) -> Option<bool> {
    let committed = match committed_offsets(client, topics) {
        Ok(committed) => committed,
        Err(error) => {
            add_group_error(&error, subject, "the offsets of", report);
            return None;
        }
    };
    let mut behind = Vec::new();
    for topic in topics {
        let mut out_of_range = Vec::new();
        for partition in topic.partitions.iter().filter(|partition| partition.has_leader) {
            let watermarks =
                client.consumer.fetch_watermarks(&topic.name, partition.id, REQUEST_TIMEOUT);
            let (low, high) = match watermarks {
                Ok(watermarks) => watermarks,
                Err(error) => {
                    let what = format!("the offsets of {} [{}]", topic.subject(), partition.id);
                    report.add_unchecked(what, error.to_string());
                    // Another request may wait as long.
                    break;
                }
            };
            let key = (topic.name.clone(), partition.id);
            let Some(&offset) = committed.get(&key) else { continue };
            if offset < low || offset > high {
                out_of_range.push(format!("{offset} in {low}..{high} of partition {}", key.1));
            } else if offset < high {
                behind.push(key);
            }
        }
        add_out_of_range(topic, &out_of_range, report);
    }
    check_progress(client, topics, &committed, behind, observation, report);
    Some(!committed.is_empty())
}

fn add_out_of_range(topic: &Topic, out_of_range: &[String], report: &mut Report) {
    let Some(first) = out_of_range.first() else { return };
    let others = match out_of_range.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} others"),
    };
    report.add(
        (FindingKind::OffsetOutOfRange, Severity::DataLoss),
        topic.subject(),
        format!("the committed offset is outside of the partition: {first}{others}"),
        "records were deleted before they were committed, or the topic was created anew; the group \
         continues at the first record",
        "raise retention.ms of the topic; do not restart a running consumer, which may still have \
         these records in memory; find out what was lost",
    );
}

/// Observes partitions with unprocessed records.
fn check_progress(
    client: &Client<'_>,
    topics: &[&Topic],
    before: &Offsets,
    behind: Vec<(String, i32)>,
    observation: Option<Duration>,
    report: &mut Report,
) {
    if behind.is_empty() {
        return;
    }
    let Some(observation) = observation else {
        return report.add_unchecked(
            format!("whether {} partitions with unprocessed records make progress", behind.len()),
            "set a time of observation",
        );
    };
    std::thread::sleep(observation);
    let after = match committed_offsets(client, topics) {
        Ok(after) => after,
        Err(error) => {
            return report.add_unchecked("the progress of the group", error.to_string());
        }
    };
    let is_stuck = |key: &&(String, i32)| {
        let Some(&offset) = before.get(*key).filter(|it| after.get(*key) == Some(it)) else {
            return false;
        };
        // The end of a transaction has an offset, too.
        client.has_record(&key.0, key.1, Offset::Offset(offset)).unwrap_or(true)
    };
    for topic in topics {
        let stuck = behind.iter().filter(|(name, _)| *name == topic.name).filter(is_stuck);
        let stuck: Vec<_> = stuck.map(|(_, partition)| partition.to_string()).collect();
        if !stuck.is_empty() {
            report.add(
                (FindingKind::NoProgress, Severity::Failure),
                topic.subject(),
                format!(
                    "no record was finished for {} in the partitions {}, which have unprocessed \
                     records",
                    display(observation),
                    stuck.join(", ")
                ),
                "the records behind the oldest one wait",
                "start the consumer, or look for its events about stalled partitions",
            );
        }
    }
}

/// Reads the offsets that the group has committed.
fn committed_offsets(client: &Client<'_>, topics: &[&Topic]) -> KafkaResult<Offsets> {
    let partitions = topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|partition| (&*topic.name, partition.id)));
    fetch_committed(&client.consumer, partitions, REQUEST_TIMEOUT)
}
