//! The records that were deleted before a consumer had processed them.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use campanile_test::history::{Event, History};

/// Counts the records of a history that were deleted, and never finished otherwise.
pub(crate) fn count_unprocessed(folder: &Path) -> usize {
    let history = History::read(folder).unwrap();
    let (mut sent, mut finished, mut ends) = (HashSet::new(), HashSet::new(), HashMap::new());
    for (_, event) in history.events() {
        match event {
            Event::Sent(event) => drop(sent.insert(&event.record)),
            Event::Answer(event) if event.outcome.is_finished() => {
                finished.insert(&event.record);
            }
            Event::DeadLetter(event) | Event::Copy(event) => drop(finished.insert(&event.record)),
            Event::Deleted(event) => {
                let end = ends.entry(&event.partition).or_default();
                *end = event.offset.max(*end);
            }
            _ => {}
        }
    }
    let is_deleted = |offset: i64, end: Option<&i64>| end.is_some_and(|end| offset < *end);
    let unprocessed = sent.difference(&finished);
    unprocessed.filter(|record| is_deleted(record.offset, ends.get(&record.partition))).count()
}
