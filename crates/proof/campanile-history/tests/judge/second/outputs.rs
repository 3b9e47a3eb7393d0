//! The rules for outputs in transactions of the broker: `output_missing`, `output_uncommitted`, and
//! parts of `effect` and `order`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Findings;
use super::read::{Partition, Record, Time};
use super::records::queues;
use super::terms::Terms;

/// Checks (d), (e) and (f) of the rule `effect`.
pub(super) fn effect(terms: &Terms<'_>, findings: &mut Findings) {
    // For each key, each of its records with outputs, and where they are.
    let mut keys: HashMap<&str, BTreeMap<&Record, BTreeSet<&Record>>> = HashMap::new();
    for output in &terms.history.outputs {
        let key = keys.entry(&terms.key_of_record[&output.record]).or_default();
        key.entry(&output.record).or_default().insert(&output.to);
    }
    let all_runs = terms.keys.values().flat_map(|key| &key.runs);
    let successes = all_runs.filter(|run| run.success().is_some()).map(|run| &run.run.record);
    let successes: HashSet<&Record> = successes.collect();
    let mut losses = terms.intervals("store_lost_writes").chain(terms.intervals("store_evicted"));
    let lossless = losses.next().is_none();
    for (name, records) in keys {
        let failed = records.keys().any(|record| !successes.contains(record));
        let twice =
            records.iter().any(|(record, to)| to.len() > 1 && !was_reset(terms, &record.partition));
        let guarded = || {
            let key = terms.keys.get(name);
            key.is_none_or(|key| {
                key.reopened.is_empty() && key.runs.iter().all(|run| run.run.token.is_some())
            })
        };
        if failed || twice || (records.len() > 1 && lossless && guarded()) {
            findings.violated("effect", name);
        }
    }
}

pub(super) fn output_missing(terms: &Terms<'_>, findings: &mut Findings) {
    let outputs = terms.history.outputs.iter();
    let with_output: HashSet<_> = outputs.map(|it| &terms.key_of_record[&it.record]).collect();
    let committed = committed(terms);
    for answer in &terms.history.answers {
        let done = ["processed", "duplicate", "unguarded"].contains(&&*answer.outcome);
        let Some(key) = terms.key_of_record.get(&answer.record) else { continue };
        let runs = terms.keys.get(key).into_iter().flat_map(|key| &key.runs);
        let mut records = runs.map(|run| &run.run.record).chain([&answer.record]);
        let deleted = records.any(|record| terms.deletions(record).next().is_some());
        if done && !deleted && is_past(&committed, &answer.record) && !with_output.contains(key) {
            findings.violated("output_missing", key);
        }
    }
}

pub(super) fn output_uncommitted(terms: &Terms<'_>, findings: &mut Findings) {
    let committed = committed(terms);
    for output in &terms.history.outputs {
        if !is_past(&committed, &output.record) {
            findings.violated("output_uncommitted", &output.record);
        }
    }
}

/// Checks (b) of the rule `order`.
pub(super) fn order(terms: &Terms<'_>, findings: &mut Findings) {
    let queues = queues(terms);
    // For each queue and partition of outputs, the smallest offset of a record by that of its
    // output.
    let mut outputs: HashMap<_, BTreeMap<i64, i64>> = HashMap::new();
    for output in &terms.history.outputs {
        if let Some(queue) = queues.get(&output.record) {
            let at = outputs.entry((queue, &output.to.partition)).or_default();
            let offset = at.entry(output.to.offset).or_insert(output.record.offset);
            *offset = output.record.offset.min(*offset);
        }
    }
    // And then the smallest one from there on.
    for offsets in outputs.values_mut() {
        let mut smallest = i64::MAX;
        for offset in offsets.values_mut().rev() {
            smallest = smallest.min(*offset);
            *offset = smallest;
        }
    }
    for output in &terms.history.outputs {
        let Some(queue) = queues.get(&output.record) else { continue };
        let Some(after) = output.to.offset.checked_add(1) else { continue };
        let behind = outputs[&(queue, &output.to.partition)].range(after..).next();
        let overtakes = behind.is_some_and(|(_, offset)| *offset < output.record.offset);
        let excused = was_reset(terms, &output.record.partition)
            || terms.begins_while_recreated(&output.record, None);
        if overtakes && !excused {
            findings.violated("order", &output.record);
        }
    }
}

fn was_reset(terms: &Terms<'_>, partition: &Partition) -> bool {
    terms.history.resets.iter().any(|(_, of)| of == partition)
}

/// Returns the largest committed offset of each partition.
fn committed<'h>(terms: &Terms<'h>) -> HashMap<&'h Partition, Time> {
    let mut committed = HashMap::new();
    for (_, partition, offset) in &terms.history.commits {
        let largest = committed.entry(partition).or_insert(*offset);
        *largest = (*largest).max(*offset);
    }
    committed
}

fn is_past(committed: &HashMap<&Partition, Time>, record: &Record) -> bool {
    committed.get(&record.partition).is_some_and(|offset| *offset > record.offset.into())
}
