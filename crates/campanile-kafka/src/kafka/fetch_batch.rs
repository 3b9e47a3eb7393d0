//! The records taken from librdkafka in one round.

use std::sync::Arc;

use super::context::Context;
use super::message;
use super::native::fetch_queues::{Message, TopicHandle};
use crate::driver::{Amount, Assignment, Received};

/// The records taken in one round.
#[derive(Default)]
pub(super) struct FetchBatch {
    pub(super) records: Vec<Received>,
    pub(super) amount: Amount,
    pub(super) largest: u64,
    /// The partitions with a position that was reset to an earlier offset.
    pub(super) resets: Vec<Arc<Assignment>>,
}

impl FetchBatch {
    pub(super) fn push(
        &mut self,
        last: &mut Option<LastPartition>,
        context: &Context,
        message: &Message<'_>,
    ) {
        let Some(assignment) = assignment_of(last, context, message) else {
            return;
        };
        if assignment.offset_range.record_read(message.offset()) {
            self.resets.push(assignment.clone());
        }
        let received = message::to_received(assignment, message);
        let one = Amount::of(&received.record);
        assignment.usage.add(one);
        self.amount += one;
        self.largest = self.largest.max(one.bytes);
        self.records.push(received);
    }
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
