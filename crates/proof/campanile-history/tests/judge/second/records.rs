//! The rules for records: `lost`, `no_effect`, `key` and `order`.

use std::collections::{BTreeMap, HashMap};

use super::Findings;
use super::attempts::explained_by_faults;
use super::read::{Partition, Record, Time};
use super::terms::{NEVER, Terms};

pub(super) fn lost(terms: &Terms<'_>, findings: &mut Findings) {
    let sent = terms.history.sent.iter().map(|sent| &sent.record);
    let copies = terms.history.copies.iter().map(|copy| &copy.to);
    for record in sent.chain(copies) {
        if terms.finished(record) == NEVER {
            findings.violated("lost", record);
        }
    }
}

pub(super) fn no_effect(terms: &Terms<'_>, findings: &mut Findings) {
    for answer in &terms.answers_of_no_run {
        if answer.outcome == "processed" || answer.outcome == "unguarded" {
            findings.violated("no_effect", &answer.record);
        }
    }
    for answer in &terms.history.answers {
        let Some(key) = terms.key_of_record.get(&answer.record) else { continue };
        let key = &terms.keys[key];
        let mut runs = key.runs.iter();
        let without = match &*answer.outcome {
            "duplicate" => !runs.any(|run| run.success().is_some_and(|at| at <= answer.at)),
            "given_up" => {
                let time = (key.first_sent(answer.at), answer.at);
                let begun = runs.any(|run| run.run.begin <= answer.at);
                !begun && explained_by_faults(terms, key, None, time) == 0
            }
            _ => false,
        };
        if without {
            findings.violated("no_effect", &answer.record);
        }
    }
}

pub(super) fn key(terms: &Terms<'_>, findings: &mut Findings) {
    for run in &terms.history.runs {
        let key = &terms.key_of_record[&run.record];
        if run.key.as_ref().is_some_and(|of_run| of_run != key) {
            findings.violated("key", &run.record);
        }
    }
    for (copy, original) in &terms.original {
        let Some(of_copy) = terms.own_key.get(copy) else { continue };
        let key = &terms.key_of_record[original];
        if of_copy != key && !terms.derived(original) {
            findings.violated("key", copy);
        }
    }
}

pub(super) fn order(terms: &Terms<'_>, findings: &mut Findings) {
    let queues = queues(terms);
    // For each queue, each record's offset with the time by which it and all before are finished.
    let mut finished: HashMap<_, BTreeMap<i64, Time>> = HashMap::new();
    for (record, queue) in &queues {
        let queue = finished.entry(queue).or_default();
        queue.insert(record.offset, terms.finished(record));
    }
    for queue in finished.values_mut() {
        let mut last = Time::MIN;
        for at in queue.values_mut() {
            last = last.max(*at);
            *at = last;
        }
    }
    for run in &terms.history.runs {
        let Some(queue) = queues.get(&run.record) else { continue };
        let before = finished[queue].range(..run.record.offset).next_back();
        let overtakes = before.is_some_and(|(_, finished)| *finished > run.begin);
        if overtakes && !terms.begins_while_recreated(&run.record, Some(run.begin)) {
            findings.violated("order", &run.record);
        }
    }
}

/// A queue of a partition.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Queue<'h> {
    Partition,
    Order(Option<&'h str>),
}

/// Returns the queue of each record that has one.
pub(super) fn queues<'h>(terms: &Terms<'h>) -> HashMap<&'h Record, (&'h Partition, Queue<'h>)> {
    let mut queues = HashMap::new();
    let copies = terms.history.copies.iter().map(|copy| &copy.to);
    queues.extend(copies.map(|copy| (copy, (&copy.partition, Queue::Partition))));
    for sent in &terms.history.sent {
        let queue = match &*terms.history.order {
            "partition" => Queue::Partition,
            "key" => Queue::Order(sent.order.as_deref()),
            _ => {
                queues.remove(&sent.record);
                continue;
            }
        };
        queues.insert(&sent.record, (&sent.record.partition, queue));
    }
    queues
}
