//! The rules of records: each is finished, answered only after its effect, and has one key.

use super::findings::Findings;
use super::index::{Index, PartitionEvents, Run};
use crate::{Event, Outcome, Rule};

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
                _ => format!(
                    "{name} was answered as processed, and no run of it in that process succeeded \
                     since the answer before"
                ),
            };
            let origin = index.records[answer.record].origin;
            let events = origin.into_iter().chain([answer.event]);
            findings.violation(
                Rule::NoEffect,
                &name,
                text,
                events.chain(events_of_runs(index, answer.record)),
            );
        }
    }
    for run in &index.runs {
        let Some(origin) = index.records[run.record].origin else { continue };
        let event = |event: usize| &index.history.events[event].event;
        if let (Event::Sent(sent), Event::Begin(begin)) = (event(origin), event(run.begin))
            && let (Some(of_record), Some(of_run)) = (&sent.key, &begin.key)
            && of_record != of_run
        {
            let name = index.record_name(run.record);
            let text =
                || format!("a run of {name} has the key {of_run}, and the record {of_record}");
            findings.violation(Rule::Key, &name, text, [origin, run.begin]);
        }
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
    let runs = index.records[record].key.map(|key| &index.keys[key].runs[..]).unwrap_or_default();
    let runs = runs.iter().map(|&run| &index.runs[run]);
    runs.filter(move |run| run.record == record).flat_map(Run::events)
}
