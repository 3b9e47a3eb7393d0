//! Collects the events of a history.

use std::borrow::Cow;
use std::collections::HashMap;

use super::faults::Faults;
use super::index::{Answered, Index, Key, PartitionEvents, Queue, Record, Run, RunEnd};
use crate::{Coordinates, Event, History, Order, Outcome, Partition, Sent, State, Transactions};

/// What is known while the events are collected.
struct Indexer<'a> {
    index: Index<'a>,
    record_numbers: HashMap<(usize, i64), usize>,
    key_numbers: HashMap<Cow<'a, str>, usize>,
    order_numbers: HashMap<&'a str, usize>,
    partition_numbers: HashMap<&'a Partition, usize>,
    /// The runs of the current process.
    process: usize,
    runs: HashMap<u64, usize>,
    /// The run of each record in the current process that has ended with `ok` and is not answered.
    unanswered: HashMap<usize, usize>,
    /// How often each record was answered in the current process.
    answered: HashMap<usize, usize>,
    /// The events of the effects in the store, by process and run.
    visible: HashMap<(&'a str, u64), Vec<usize>>,
    /// The records that were copied.
    copied: Vec<usize>,
}

/// Collects the events of a history.
pub(super) fn index_history(history: &History) -> Index<'_> {
    let index = Index {
        history,
        faults: Faults::new(history),
        records: Vec::new(),
        keys: Vec::new(),
        partitions: Vec::new(),
        runs: Vec::new(),
        answers: Vec::new(),
        outputs: Vec::new(),
    };
    let mut indexer = Indexer {
        index,
        record_numbers: HashMap::new(),
        key_numbers: HashMap::new(),
        order_numbers: HashMap::new(),
        partition_numbers: HashMap::new(),
        process: 0,
        runs: HashMap::new(),
        unanswered: HashMap::new(),
        answered: HashMap::new(),
        visible: HashMap::new(),
        copied: Vec::new(),
    };
    // First, because what the producer says of a record's key counts, and because only runs with a
    // visible effect have succeeded.
    for (event, line) in history.events.iter().enumerate() {
        match &line.event {
            Event::Sent(sent) => indexer.add_sent(event, sent),
            Event::Visible(visible)
                if history.settings.transactions == Some(Transactions::Store) =>
            {
                let run = (&*visible.process, visible.run);
                indexer.visible.entry(run).or_default().push(event);
            }
            _ => {}
        }
    }
    for (event, line) in history.events.iter().enumerate() {
        if line.process != indexer.process {
            indexer.process = line.process;
            indexer.runs.clear();
            indexer.unanswered.clear();
            indexer.answered.clear();
        }
        indexer.add(event, &line.event);
    }
    indexer.finish()
}

impl<'a> Indexer<'a> {
    fn add_sent(&mut self, event: usize, sent: &'a Sent) {
        let record = self.record(&sent.record);
        if self.index.records[record].sent.is_some() {
            return;
        }
        let queue = self.queue(sent.order.as_deref());
        let key = sent.key.as_deref().map(|key| self.key(key.into()));
        let entry = &mut self.index.records[record];
        (entry.key, entry.queue) = (key, queue);
        (entry.origin, entry.sent) = (Some(event), Some(sent.at));
    }

    fn add(&mut self, event: usize, content: &'a Event) {
        match content {
            Event::Sent(_) | Event::Visible(_) | Event::Fault(_) => {}
            Event::Begin(begin) => {
                let record = self.record(&begin.record);
                let key = begin.key.as_deref().map(|key| self.key(key.into()));
                let known = &mut self.index.records[record].key;
                *known = known.or(key);
                self.runs.insert(begin.run, self.index.runs.len());
                let Index { history, faults, .. } = &self.index;
                let process = &*history.processes[self.process].name;
                let visible = self.visible.remove(&(process, begin.run)).unwrap_or_default();
                let is_invisible = history.settings.transactions == Some(Transactions::Store)
                    && visible.is_empty();
                let may_be_lost = faults.lost_writes(begin.at, u64::MAX);
                self.index.runs.push(Run {
                    process: self.process,
                    record,
                    // Found at the end if it is not known yet.
                    key: key.unwrap_or(usize::MAX),
                    token: begin.token,
                    attempt: begin.attempt,
                    began: begin.at,
                    begin: event,
                    effect: None,
                    end: None,
                    delivery: self.answered.get(&record).copied().unwrap_or_default(),
                    visible,
                    is_invisible,
                    may_be_lost,
                    answer: None,
                });
            }
            // The reader has checked that the run has begun.
            Event::Effect(effect) => {
                let run = self.runs[&effect.run];
                self.index.runs[run].effect.get_or_insert(event);
            }
            Event::End(end) => {
                let number = self.runs[&end.run];
                let run = &mut self.index.runs[number];
                let has_lost_lock = end.lost.is_some();
                run.end = Some(RunEnd { at: end.at, how: end.how, has_lost_lock, event });
                if run.success().is_some() {
                    self.unanswered.insert(run.record, number);
                }
            }
            Event::Answer(answer) => {
                let record = self.record(&answer.record);
                let (at, outcome) = (answer.at, answer.outcome);
                *self.answered.entry(record).or_default() += 1;
                let run = self.unanswered.remove(&record);
                if let Some(run) = run {
                    self.index.runs[run].answer = Some((outcome, at, event));
                }
                if outcome.is_finished() {
                    self.finish_record(record, at, event);
                }
                self.index.answers.push(Answered { record, event, at, outcome, run });
            }
            Event::DeadLetter(letter) => {
                let record = self.record(&letter.record);
                self.finish_record(record, letter.at, event);
            }
            Event::Copy(published) => {
                let (record, copy) = (self.record(&published.record), self.record(&published.to));
                self.finish_record(record, published.at, event);
                let entry = &mut self.index.records[copy];
                entry.origin.get_or_insert(event);
                if entry.sent.is_none() {
                    entry.queue = Some(Queue::Partition);
                }
                self.index.records[copy].original.get_or_insert(record);
                self.copied.push(record);
            }
            Event::Skipped(skipped) => {
                let record = self.record(&skipped.record);
                self.finish_record(record, skipped.at, event);
            }
            Event::Commit(commit) => {
                let partition = self.partition(&commit.partition);
                self.index.partitions[partition].commits.push(event);
            }
            Event::Reset(reset) => {
                let partition = self.partition(&reset.partition);
                self.index.partitions[partition].resets.push(reset.at);
            }
            Event::Deleted(deleted) => {
                let partition = self.partition(&deleted.partition);
                let deletion = (deleted.offset, deleted.at, event);
                self.index.partitions[partition].deletions.push(deletion);
            }
            Event::Entry(entry) => {
                let key = self.key(entry.key.as_str().into());
                let key = &mut self.index.keys[key];
                key.entries.push(event);
                match entry.state {
                    State::Completed => key.completed.push((entry.token, event)),
                    State::Failed => key.given_up.push((entry.at, event)),
                    _ => {}
                }
            }
            Event::Output(output) => {
                let record = self.record(&output.record);
                self.index.outputs.push((record, event));
            }
            Event::Reopened(reopened) => {
                let key = self.key(reopened.key.as_str().into());
                self.index.keys[key].reopened.push(reopened.at);
            }
            Event::Unlocked(unlocked) => {
                let key = self.key(unlocked.key.as_str().into());
                self.index.keys[key].unlocked.push(unlocked.at);
            }
        }
    }

    /// Connects what events of different processes say.
    fn finish(mut self) -> Index<'a> {
        self.find_keys();
        self.finish_deleted();
        for record in &self.index.records {
            if let (Some(key), Some(sent)) = (record.key, record.sent) {
                let first = self.index.keys[key].first_sent.get_or_insert(sent);
                *first = sent.min(*first);
            }
        }
        for (number, run) in self.index.runs.iter_mut().enumerate() {
            if run.key == usize::MAX {
                let of_record = self.index.records[run.record].key;
                run.key = of_record.expect("a record with a run has a key");
            }
            self.index.records[run.record].runs.push(number);
            let key = &mut self.index.keys[run.key];
            key.runs.push(number);
            key.has_unguarded |= run.token.is_none();
            let processed = run.processed().filter(|_| run.token.is_some());
            key.first_processed = [key.first_processed, processed].into_iter().flatten().min();
            key.first_success = [key.first_success, run.success()].into_iter().flatten().min();
        }
        let Index { answers, records, keys, .. } = &mut self.index;
        for &Answered { record, at, outcome, event, .. } in answers.iter() {
            let Some(key) = records[record].key else { continue };
            match outcome {
                Outcome::Duplicate => keys[key].duplicates.push((at, event)),
                Outcome::GivenUp => keys[key].given_up.push((at, event)),
                _ => {}
            }
        }
        let Index { keys, runs, history, .. } = &mut self.index;
        for key in keys {
            key.runs.sort_by_key(|&run| (runs[run].began, runs[run].token, run));
            key.entries.sort_by_key(|&event| history.events[event].event.at());
            key.completed.sort_unstable();
            key.duplicates.sort_unstable();
            key.given_up.sort_unstable();
            key.reopened.sort_unstable();
            key.unlocked.sort_unstable();
        }
        let Index { partitions, records, .. } = &mut self.index;
        for partition in partitions {
            partition.records.sort_by_key(|&record| records[record].offset);
            partition.resets.sort_unstable();
        }
        self.index
    }

    /// Finds the keys of records that have none in the history: that of the record of a copy, or
    /// the coordinates of a record that was copied, or has a run or an output.
    fn find_keys(&mut self) {
        let mut needs_key = vec![false; self.index.records.len()];
        let mut originals: Vec<_> = self.index.records.iter().map(|it| it.original).collect();
        self.copied.iter().for_each(|record| needs_key[*record] = true);
        self.index.records.iter_mut().for_each(|record| record.own_key = record.key);
        self.index.runs.iter().for_each(|run| needs_key[run.record] = true);
        self.index.outputs.iter().for_each(|(record, _)| needs_key[*record] = true);
        for record in 0..self.index.records.len() {
            // The record of a copy may be a copy itself. Each step is taken once, which also ends a
            // circle.
            let (mut last, mut chain) = (record, Vec::new());
            while self.index.records[last].key.is_none() {
                chain.push(last);
                let Some(original) = originals[last].take() else { break };
                last = original;
            }
            let Record { mut key, has_derived_key: mut is_derived, .. } = self.index.records[last];
            for record in chain.into_iter().rev() {
                if key.is_none() && needs_key[record] {
                    key = Some(self.key(self.index.record_name(record).into()));
                    is_derived = true;
                }
                let record = &mut self.index.records[record];
                (record.key, record.has_derived_key) = (key, is_derived);
            }
        }
    }

    /// Finishes the records that were deleted, also those that were sent later.
    fn finish_deleted(&mut self) {
        for number in 0..self.index.partitions.len() {
            let partition = &mut self.index.partitions[number];
            partition.deletions.sort_unstable();
            // The first deletion of all with this offset or a larger one.
            let mut first: Vec<(i64, u64, usize)> = Vec::new();
            for &(offset, at, event) in partition.deletions.iter().rev() {
                let (_, at, event) = match first.last() {
                    Some(&later) if later.1 < at => later,
                    _ => (offset, at, event),
                };
                first.push((offset, at, event));
            }
            first.reverse();
            for record in partition.records.clone() {
                let offset = self.index.records[record].offset;
                let above = first.partition_point(|deletion| deletion.0 <= offset);
                if let Some(&(_, at, event)) = first.get(above) {
                    self.finish_record(record, at, event);
                }
            }
        }
    }

    fn finish_record(&mut self, record: usize, at: u64, event: usize) {
        let finished = &mut self.index.records[record].finished;
        if finished.is_none_or(|(before, _)| at < before) {
            *finished = Some((at, event));
        }
    }

    fn record(&mut self, coordinates: &'a Coordinates) -> usize {
        let partition = self.partition(&coordinates.partition);
        let offset = coordinates.offset;
        *self.record_numbers.entry((partition, offset)).or_insert_with(|| {
            let number = self.index.records.len();
            self.index.partitions[partition].records.push(number);
            self.index.records.push(Record {
                partition,
                offset,
                key: None,
                own_key: None,
                has_derived_key: false,
                original: None,
                runs: Vec::new(),
                origin: None,
                sent: None,
                queue: None,
                finished: None,
            });
            number
        })
    }

    fn partition(&mut self, partition: &'a Partition) -> usize {
        *self.partition_numbers.entry(partition).or_insert_with(|| {
            self.index.partitions.push(PartitionEvents {
                name: partition,
                records: Vec::new(),
                commits: Vec::new(),
                resets: Vec::new(),
                deletions: Vec::new(),
            });
            self.index.partitions.len() - 1
        })
    }

    fn key(&mut self, name: Cow<'a, str>) -> usize {
        if let Some(&number) = self.key_numbers.get(&name) {
            return number;
        }
        let number = self.index.keys.len();
        self.key_numbers.insert(name.clone(), number);
        self.index.keys.push(Key {
            name,
            runs: Vec::new(),
            entries: Vec::new(),
            completed: Vec::new(),
            duplicates: Vec::new(),
            given_up: Vec::new(),
            reopened: Vec::new(),
            unlocked: Vec::new(),
            has_unguarded: false,
            first_sent: None,
            first_processed: None,
            first_success: None,
        });
        number
    }

    fn queue(&mut self, order: Option<&'a str>) -> Option<Queue> {
        let count = self.order_numbers.len();
        match self.index.history.settings.order {
            Order::None => None,
            Order::Partition => Some(Queue::Partition),
            Order::Key => {
                let mut number = |order| *self.order_numbers.entry(order).or_insert(count);
                Some(Queue::Key(order.map(&mut number)))
            }
        }
    }
}
