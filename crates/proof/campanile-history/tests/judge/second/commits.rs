//! The rules for commits: `commit_past_unfinished` and `commit_lowered`.

use std::collections::{BTreeMap, HashMap};

use super::Findings;
use super::read::Time;
use super::terms::Terms;

pub(super) fn commit_past_unfinished(terms: &Terms<'_>, findings: &mut Findings) {
    let history = terms.history;
    let records = (history.sent.iter().map(|sent| &sent.record))
        .chain(history.runs.iter().map(|run| &run.record))
        .chain(history.answers.iter().map(|answer| &answer.record))
        .chain(history.dead_letters.iter().map(|letter| &letter.record))
        .chain(history.copies.iter().flat_map(|copy| [&copy.record, &copy.to]))
        .chain(history.outputs.iter().map(|output| &output.record))
        .chain(history.skipped.iter().map(|(_, record)| record));
    // For each partition, each record's offset with the time by which it and all before are
    // finished.
    let mut finished: HashMap<_, BTreeMap<Time, Time>> = HashMap::new();
    for record in records {
        let partition = finished.entry(&record.partition).or_default();
        partition.insert(record.offset.into(), terms.finished(record));
    }
    for partition in finished.values_mut() {
        let mut last = Time::MIN;
        for at in partition.values_mut() {
            last = last.max(*at);
            *at = last;
        }
    }
    for (at, partition, offset) in &history.commits {
        let Some(finished) = finished.get(partition) else { continue };
        let below = finished.range(..*offset).next_back();
        if below.is_some_and(|(_, finished)| *finished > at + history.tolerance) {
            findings.violated("commit_past_unfinished", partition);
        }
    }
}

pub(super) fn commit_lowered(terms: &Terms<'_>, findings: &mut Findings) {
    let history = terms.history;
    let mut previous = HashMap::new();
    for (at, partition, offset) in &history.commits {
        let Some((at_before, before)) = previous.insert(partition, (*at, *offset)) else {
            continue;
        };
        // They are in the order of the broker, whose clock may have been set back between them.
        let from = at_before.min(*at) - history.tolerance;
        let to = at_before.max(*at) + history.tolerance;
        let reset =
            history.resets.iter().any(|(at, of)| of == partition && from <= *at && *at <= to);
        let mut recreated = terms.intervals("topic_recreated");
        let unknown = recreated.any(|(begin, end)| begin <= to && from <= end);
        let undeleted = history.deleted.iter().any(|(deleted, of, below)| {
            of == partition
                && *below > before
                && terms
                    .intervals("broker_killed")
                    .any(|(begin, end)| begin <= to && *deleted <= end)
        });
        if *offset < before && !reset && !unknown && !undeleted {
            findings.violated("commit_lowered", partition);
        }
    }
}
