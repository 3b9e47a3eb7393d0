//! The records taken from librdkafka in one round.

use std::sync::Arc;

use campanile_driver::source::{Assignment, LogChange, LogChanged, Received};
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::context::Context;
use super::message;
use crate::native;
use crate::native::fetch_queues::{Message, TopicHandle};

/// The records taken in one round.
#[derive(Default)]
pub(super) struct FetchBatch {
    pub(super) records: Vec<Received>,
    pub(super) largest: u64,
    /// The partitions with a position that was reset to an earlier offset.
    pub(super) resets: Vec<Arc<Assignment>>,
    /// The records that are missing, or that were read before a reset.
    pub(super) changes: Vec<LogChange>,
}

impl FetchBatch {
    pub(super) fn push(
        &mut self,
        last: &mut Option<LastPartition>,
        consumer: &BaseConsumer<Context>,
        message: &Message<'_>,
    ) {
        let Some(assignment) = assignment_of(last, consumer.context(), message) else {
            return;
        };
        assignment.set_leader_epoch(message.leader_epoch());
        let offset = message.offset();
        if let Some(position) = assignment.offset_range.record_read(offset) {
            if offset < position {
                self.resets.push(assignment.clone());
            }
            let what = change(consumer, assignment, position, offset);
            let changed = |what| LogChange { partition: assignment.clone(), what };
            self.changes.extend(what.map(changed));
        }
        let received = message::to_received(assignment, message);
        self.largest = self.largest.max(received.record.size() as u64);
        self.records.push(received);
    }
}

/// Finds out why a record is not the one at the position. Compaction and transactions leave gaps as well.
fn change(
    consumer: &BaseConsumer<Context>,
    assignment: &Assignment,
    position: i64,
    offset: i64,
) -> Option<LogChanged> {
    if offset < position {
        return Some(LogChanged::Truncated { position, offset });
    }
    let (start, _) = native::log_range(consumer, &assignment.topic, assignment.partition)?;
    let position = position.max(assignment.offset_range.complete_to().unwrap_or(position));
    // A record before the start was fetched before the log was cut: its gap is an older one.
    (position < start && start <= offset).then_some(LogChanged::Deleted { position, start })
}

/// Finds the assignment of a message, unless its partition is no longer assigned.
fn assignment_of<'a>(
    last: &'a mut Option<LastPartition>,
    context: &Context,
    message: &Message<'_>,
) -> Option<&'a Arc<Assignment>> {
    let (topic, partition) = (message.topic_handle(), message.partition());
    let same = |last: &LastPartition| {
        let LastPartition { topic: of, assignment } = last;
        *of == topic && assignment.partition == partition && !assignment.is_revoked()
    };
    if !last.as_ref().is_some_and(same) {
        let assignment = context.assignment(message.topic(), partition);
        *last = assignment.map(|assignment| LastPartition { topic, assignment });
    }
    last.as_ref().map(|last| &last.assignment)
}

/// The partition of the last record.
pub(super) struct LastPartition {
    topic: TopicHandle,
    assignment: Arc<Assignment>,
}
