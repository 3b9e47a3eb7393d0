//! The rules of outputs in transactions of the broker.

use std::collections::{HashMap, HashSet};

use super::findings::Findings;
use super::index::{Index, Queue, Record};
use crate::{Coordinates, Event, Outcome, Partition, Rule, Transactions};

/// An output, and where it is.
struct Output<'a> {
    record: usize,
    to: &'a Coordinates,
    event: usize,
}

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    if index.history.settings.transactions != Some(Transactions::Broker) {
        return;
    }
    let outputs = index.outputs.iter().map(|&(record, event)| {
        let Event::Output(output) = &index.history.events[event].event else {
            unreachable!("only outputs are listed")
        };
        Output { record, to: &output.to, event }
    });
    let mut outputs: Vec<_> = outputs.collect();
    outputs.sort_by_key(|output| (output.record, output.to));
    outputs.dedup_by_key(|output| (output.record, output.to));
    check_effects(index, findings, &outputs);
    check_commits(index, findings, &outputs);
    check_order(index, findings, &outputs);
}

/// Checks that each key has outputs of one record, once, and of a handler that succeeded.
fn check_effects(index: &Index<'_>, findings: &mut Findings<'_>, outputs: &[Output<'_>]) {
    let succeeded = index.runs.iter().filter(|run| run.success().is_some());
    let succeeded: HashSet<usize> = succeeded.map(|run| run.record).collect();
    let has_data_loss = index.faults.lost_writes(0, u64::MAX) || index.faults.evicted(0, u64::MAX);
    let mut of_keys: HashMap<usize, &Output<'_>> = HashMap::new();
    for (number, output) in outputs.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| &outputs[before]);
        let before = before.filter(|before| before.record == output.record);
        let record = &index.records[output.record];
        let number = record.key.expect("a record with an output has a key");
        let key = &index.keys[number];
        if !succeeded.contains(&output.record) {
            let text = || format!("{} has the output of a handler without success", key.name);
            findings.violation(Rule::Effect, &*key.name, text, [output.event]);
        }
        let first = *of_keys.entry(number).or_insert(output);
        let is_excused = match before {
            Some(_) => !index.partitions[record.partition].resets.is_empty(),
            None => has_data_loss || !key.reopened.is_empty() || key.has_unguarded,
        };
        let other = before.unwrap_or(first);
        if other.event != output.event && !is_excused {
            let text = || format!("{} has outputs twice", key.name);
            findings.violation(Rule::Effect, &*key.name, text, [other.event, output.event]);
        }
    }
}

/// Checks that a record has an output if, and only if, its offset is committed.
fn check_commits(index: &Index<'_>, findings: &mut Findings<'_>, outputs: &[Output<'_>]) {
    let offset = |commit: &usize| match &index.history.events[*commit].event {
        Event::Commit(commit) => commit.offset,
        _ => unreachable!("only commits are listed"),
    };
    // The largest offset of each partition, and the event.
    let committed = index
        .partitions
        .iter()
        .map(|partition| partition.commits.iter().map(|commit| (offset(commit), *commit)).max());
    let committed: Vec<Option<(i64, usize)>> = committed.collect();
    let commit_of = |record: usize| {
        let Record { partition, offset, .. } = &index.records[record];
        committed[*partition].filter(|(committed, _)| committed > offset).map(|(_, event)| event)
    };
    for output in outputs.iter().filter(|output| commit_of(output.record).is_none()) {
        let name = index.record_name(output.record);
        let text = || format!("{name} has an output, and its offset is not committed");
        findings.violation(Rule::OutputUncommitted, &name, text, [output.event]);
    }
    let keys: HashSet<_> = outputs.iter().map(|it| index.records[it.record].key).collect();
    for answer in &index.answers {
        let Some(key) = index.records[answer.record].key else { continue };
        let Some(commit) = commit_of(answer.record) else { continue };
        // It is not redelivered after its transaction was aborted, nor is the record that it repeats.
        let mut runs = index.keys[key].runs.iter().map(|&run| index.runs[run].record);
        if index.is_deleted(answer.record) || runs.any(|record| index.is_deleted(record)) {
            continue;
        }
        let is_done =
            matches!(answer.outcome, Outcome::Processed | Outcome::Duplicate | Outcome::Unguarded);
        if is_done && !keys.contains(&Some(key)) {
            let name = &*index.keys[key].name;
            let text = || format!("{name} was committed without an output");
            findings.violation(Rule::OutputMissing, name, text, [answer.event, commit]);
        }
    }
}

/// Checks that the outputs of a queue in a partition have the order of its records.
fn check_order(index: &Index<'_>, findings: &mut Findings<'_>, outputs: &[Output<'_>]) {
    let mut queues: HashMap<(usize, Queue, &Partition), Vec<&Output<'_>>> = HashMap::new();
    for output in outputs {
        let record = &index.records[output.record];
        let has_reset = !index.partitions[record.partition].resets.is_empty();
        if let Some(queue) = record.queue.filter(|_| !has_reset) {
            let queue = (record.partition, queue, &output.to.partition);
            queues.entry(queue).or_default().push(output);
        }
    }
    for queue in queues.values_mut() {
        // From the last output to the first, each with the earliest record among those behind it.
        queue.sort_by_key(|output| std::cmp::Reverse(output.to.offset));
        let mut earliest: Option<&Output<'_>> = None;
        for outputs in queue.chunk_by(|one, other| one.to.offset == other.to.offset) {
            let offset = |output: &Output<'_>| index.records[output.record].offset;
            for &output in outputs {
                let Some(behind) = earliest.filter(|it| offset(it) < offset(output)) else {
                    continue;
                };
                let mut runs = index.records[output.record].runs.iter();
                if runs.any(|&run| index.faults.is_recreated(index.runs[run].began)) {
                    continue;
                }
                let (name, before) =
                    (index.record_name(output.record), index.record_name(behind.record));
                let text = || format!("the output of {name} is before that of {before}");
                findings.violation(Rule::Order, &name, text, [output.event, behind.event]);
            }
            let all = earliest.into_iter().chain(outputs.iter().copied());
            earliest = all.min_by_key(|output| offset(output));
        }
    }
}
