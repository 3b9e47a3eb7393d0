//! The rules of records: each is finished, answered only after its effect, and has one key.

use super::findings::Findings;
use super::index::{Index, PartitionEvents};
use crate::{Event, Outcome, Rule, Transactions};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for partition in &index.partitions {
        check_partition(index, findings, partition);
    }
    for answer in &index.answers {
        let is_shown = match answer.outcome {
            Outcome::Processed | Outcome::Unguarded => answer.run.is_some(),
            // Nothing is known about a record without a key.
            Outcome::Duplicate => index.records[answer.record].key.is_none_or(|key| {
                index.keys[key].first_success.is_some_and(|success| success <= answer.at)
            }),
            Outcome::GivenUp => index.records[answer.record].key.is_none_or(|key| {
                let key = &index.keys[key];
                // The runs are in the order of their begins.
                key.runs.first().is_some_and(|&run| index.runs[run].began <= answer.at)
                    || index.uncounted_since_sent(key, answer.at) > 0
            }),
            Outcome::Error | Outcome::Dropped => true,
        };
        if !is_shown {
            let name = index.record_name(answer.record);
            let text = || match answer.outcome {
                Outcome::GivenUp => {
                    format!("{name} was answered as given up, and no handler had begun before")
                }
                Outcome::Duplicate => {
                    format!("{name} was answered as a duplicate, and no handler had succeeded")
                }
                _ => {
                    let success = match index.history.settings.transactions {
                        Some(Transactions::Store) => "succeeded with a `visible` effect",
                        _ => "succeeded",
                    };
                    format!(
                        "{name} was answered as processed, and no run of it in that process {success} \
                         since the answer before"
                    )
                }
            };
            let record = &index.records[answer.record];
            let of_key = record.key.and_then(|key| index.keys[key].runs.first());
            let of_key = of_key.into_iter().flat_map(|&run| index.runs[run].events());
            let events = record.origin.into_iter().chain(of_key).chain([answer.event]);
            let events = events.chain(events_of_runs(index, answer.record));
            findings.violation(Rule::NoEffect, &name, text, events);
        }
    }
    for number in 0..index.records.len() {
        check_key(index, findings, number);
    }
}

/// Checks that the runs of a record have its key, and that a copy has that of its original.
fn check_key(index: &Index<'_>, findings: &mut Findings<'_>, number: usize) {
    let record = &index.records[number];
    let (name, key_name) = (index.record_name(number), |key: usize| &index.keys[key].name);
    let Some(key) = record.key else { return };
    let runs = || record.runs.iter().map(|&run| &index.runs[run]);
    if let Some(run) = runs().find(|run| run.key != key) {
        let text = || {
            format!(
                "a run of {name} has the key {}, and the record {}",
                key_name(run.key),
                key_name(key)
            )
        };
        let first = runs().next().map(|run| run.begin);
        let events = record.origin.into_iter().chain(first).chain([run.begin]);
        findings.violation(Rule::Key, &name, text, events);
    }
    if let (Some(own), Some(original)) = (record.own_key, record.original)
        && let Some(copied) = index.records[original].key.filter(|copied| *copied != own)
        && !index.records[original].has_derived_key
    {
        let text = || {
            let (own, copied) = (key_name(own), key_name(copied));
            format!("{name} has the key {own}, and the record of which it is a copy {copied}")
        };
        let first = runs().next().map(|run| run.begin);
        let origins = [index.records[original].origin, record.origin];
        findings.violation(Rule::Key, &name, text, origins.into_iter().flatten().chain(first));
    }
}

/// Checks that each record of a partition is finished.
fn check_partition(
    index: &Index<'_>,
    findings: &mut Findings<'_>,
    partition: &PartitionEvents<'_>,
) {
    // The commits with a larger offset than all before them.
    let mut rising: Vec<(i64, usize)> = Vec::new();
    for &event in &partition.commits {
        let Event::Commit(commit) = &index.history.events[event].event else { continue };
        if rising.last().is_none_or(|(offset, _)| *offset < commit.offset) {
            rising.push((commit.offset, event));
        }
    }
    for &number in &partition.records {
        let record = &index.records[number];
        let (Some(origin), None) = (record.origin, record.finished) else { continue };
        let name = index.record_name(number);
        let commit = rising.get(rising.partition_point(|(offset, _)| *offset <= record.offset));
        let text = || match commit {
            Some(_) => format!("{name} was committed, and never finished"),
            None => format!("{name} was not finished by the end of the history"),
        };
        let events = [origin].into_iter().chain(commit.map(|(_, event)| *event));
        let events = events.chain(events_of_runs(index, number));
        findings.violation(Rule::Lost, &name, text, events);
    }
}

/// Lists the events of all runs of a record.
fn events_of_runs(index: &Index<'_>, record: usize) -> impl Iterator<Item = usize> {
    index.records[record].runs.iter().flat_map(|&run| index.runs[run].events())
}
