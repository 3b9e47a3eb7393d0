//! What was not read, and what cannot be found in a history without some events.

use std::collections::{BTreeSet, HashSet};

use super::index::{Index, PartitionEvents, Run};
use crate::{Event, Transactions};

/// Says what a reader of the verdict must know, in sentences.
pub(super) fn notes(index: &Index<'_>) -> Vec<String> {
    let history = index.history;
    let torn = history.torn.iter().map(|(file, line)| format!("{file}:{line}"));
    let names: HashSet<_> = history.processes.iter().map(|process| &process.name).collect();
    let with_faults = history.events.iter().filter_map(|line| match &line.event {
        Event::Fault(fault) => fault.kind.process().cloned(),
        _ => None,
    });
    let restarted = index.runs.iter().filter(|run| index.faults.has_ended(run.process, run.began));
    let shared = index.partitions.iter().filter(|partition| has_several_writers(index, partition));
    let lists = [
        ("lines ignored, because they have no end", torn.collect()),
        ("processes that have faults and no header", {
            with_faults.filter(|name| !names.contains(name)).collect()
        }),
        ("processes that ran again under their name after they were killed", {
            restarted.map(|run| history.processes[run.process].name.clone()).collect()
        }),
        ("partitions whose commits have no order, because several processes wrote them", {
            shared.map(|partition| partition.name.to_string()).collect::<BTreeSet<_>>()
        }),
    ];
    let lists = lists.into_iter().filter(|(_, items)| !items.is_empty());
    let lists = lists.map(|(what, items)| format!("{what}: {}", join(&items)));
    let has_token = |run: &&Run| run.token.is_some();
    let counts = [
        (
            "files ignored, because their names do not end in .jsonl, or they are no files",
            history.other_files,
        ),
        ("runs with a `token` and no `attempt`, which are not checked for it", {
            index.runs.iter().filter(has_token).filter(|run| run.attempt.is_none()).count()
        }),
    ];
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(what, count)| format!("{what}: {count}"));
    let is_in_store = history.settings.transactions == Some(Transactions::Store);
    let has_runs = !index.runs.is_empty();
    let missing = [
        (
            index.records.iter().all(|record| record.origin.is_none()),
            "no record is `sent`, so none can be found lost",
        ),
        (!has_runs, "there is no `begin`"),
        (
            has_runs && !index.runs.iter().any(|run| has_token(&run)),
            "no run has a `token`, so each may run again and overlap others",
        ),
        (
            is_in_store && index.runs.iter().all(|run| run.visible.is_empty()),
            "there is no `visible`, so each run counts as rolled back",
        ),
        (
            index.partitions.iter().all(|partition| partition.commits.is_empty()),
            "there is no `commit` to check",
        ),
        (index.keys.iter().all(|key| key.entries.is_empty()), "there is no `entry` to check"),
    ];
    let missing = missing.into_iter().filter(|(is_missing, _)| *is_missing);
    lists.chain(counts).chain(missing.map(|(_, text)| text.to_owned())).collect()
}

fn has_several_writers(index: &Index<'_>, partition: &PartitionEvents<'_>) -> bool {
    let mut writers = partition.commits.iter().map(|&event| index.history.events[event].process);
    let first = writers.next();
    writers.any(|writer| Some(writer) != first)
}

fn join(items: &BTreeSet<String>) -> String {
    items.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
