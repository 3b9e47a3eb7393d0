//! The rules of commits.

use super::findings::Findings;
use super::index::{Index, PartitionEvents};
use super::order::is_later;
use super::times::any_within;
use crate::{Event, Position, Rule};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for partition in index.partitions.iter().filter(|partition| !partition.commits.is_empty()) {
        check_partition(index, findings, partition);
    }
}

fn check_partition(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    partition: &PartitionEvents<'_>,
) {
    let name = partition.name.to_string();
    // For each record, the one that was finished last of all up to it.
    let mut last_finished: Vec<usize> = Vec::with_capacity(partition.records.len());
    let finished = |record: usize| index.records[record].finished.map(|(at, _)| at);
    for &record in &partition.records {
        let last = last_finished.last().copied();
        let later = last.filter(|&last| is_later(finished(last), finished(record)));
        last_finished.push(later.unwrap_or(record));
    }
    let tolerance = index.history.settings.tolerance;
    let mut previous: Option<(usize, &Position)> = None;
    for &event in &partition.commits {
        let Event::Commit(commit) = &index.history.events[event].event else {
            unreachable!("only commits are listed")
        };
        let below = partition
            .records
            .partition_point(|&record| index.records[record].offset < commit.offset);
        let last = below.checked_sub(1).map(|last| last_finished[last]);
        let is_early =
            |&last: &usize| is_later(finished(last), Some(commit.at.saturating_add(tolerance)));
        if let Some(last) = last.filter(is_early) {
            let text = || {
                let last = index.record_name(last);
                format!(
                    "offset {} of {name} was committed before {last} was finished",
                    commit.offset
                )
            };
            let last = &index.records[last];
            let events = [last.origin, last.finished.map(|(_, event)| event), Some(event)];
            findings.violation(
                Rule::CommitPastUnfinished,
                &name,
                text,
                events.into_iter().flatten(),
            );
        }
        if let Some((before, earlier)) = previous.filter(|(_, one)| commit.offset < one.offset) {
            // They are in the order of the broker, whose clock may have been set back between them.
            let from = earlier.at.min(commit.at).saturating_sub(tolerance);
            let until = earlier.at.max(commit.at).saturating_add(tolerance);
            let is_recreated = index.faults.is_recreated_within(from, until);
            // A broker that is killed soon after a deletion has the deleted records again.
            let is_undeleted = partition.deletions.iter().any(|(offset, at, _)| {
                *offset > earlier.offset && index.faults.is_broker_killed(*at, until)
            });
            let is_known = is_recreated || is_undeleted;
            if !is_known && !any_within(&partition.resets, from, until) {
                let text = || {
                    let (one, other) = (earlier.offset, commit.offset);
                    format!("offset {other} of {name} was committed after {one}")
                };
                findings.violation(Rule::CommitLowered, &name, text, [before, event]);
            }
        }
        previous = Some((event, commit));
    }
}
