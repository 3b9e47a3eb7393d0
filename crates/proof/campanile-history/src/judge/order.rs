//! The order of records in their queues.

use std::collections::HashMap;

use super::findings::Findings;
use super::index::{Index, Queue};
use crate::Rule;

/// The records of a queue in the order of their offsets, each with the one that was finished last of
/// all up to it, and when. `None` if it was never finished.
type Finished = Vec<(i64, usize, Option<u64>)>;

/// Checks that each run begins after all earlier records of its queue are finished.
pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    let mut queues: HashMap<(usize, Queue), Finished> = HashMap::new();
    for (number, partition) in index.partitions.iter().enumerate() {
        for &record in &partition.records {
            let entry = &index.records[record];
            let Some(queue) = entry.queue else { continue };
            let finished = entry.finished.map(|(at, _)| at);
            let queue = queues.entry((number, queue)).or_default();
            let before = queue.last().filter(|(.., before_at)| is_later(*before_at, finished));
            let (last, last_at) = before.map_or((record, finished), |(_, last, at)| (*last, *at));
            queue.push((entry.offset, last, last_at));
        }
    }
    for run in &index.runs {
        let record = &index.records[run.record];
        let Some(queue) = record.queue else { continue };
        let queue = &queues[&(record.partition, queue)];
        let earlier = queue.partition_point(|(offset, ..)| *offset < record.offset);
        let Some(&(_, last, finished)) = earlier.checked_sub(1).map(|last| &queue[last]) else {
            continue;
        };
        if finished.is_some_and(|at| at <= run.began) || index.faults.is_recreated(run.began) {
            continue;
        }
        let (name, last_name) = (index.record_name(run.record), index.record_name(last));
        let text = || format!("{name} began before {last_name} was finished");
        let last = &index.records[last];
        let events = [last.origin, last.finished.map(|(_, event)| event), Some(run.begin)];
        findings.violation(Rule::Order, &name, text, events.into_iter().flatten());
    }
}

/// Checks whether the first time is later than the second. `None` is later than all.
pub(super) fn is_later(one: Option<u64>, other: Option<u64>) -> bool {
    other.is_some_and(|other| one.is_none_or(|one| one > other))
}
