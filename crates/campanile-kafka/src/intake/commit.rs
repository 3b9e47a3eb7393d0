//! Which offsets to commit, and what a commit's failure means.

use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::assignment::{Assignment, Held};

/// How often changed marks are committed: what a crash replays at most, as duplicates.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);

/// The marks that changed since the last commit that was sent; `None` if there are none. They count
/// as sent.
pub(super) fn changed(assignment: &mut Assignment) -> Option<TopicPartitionList> {
    list(assignment.iter_mut().filter(|held| held.slot.mark() != held.sent))
}

/// The marks that no broker has acknowledged; `None` if there are none. They count as sent.
pub(super) fn unacknowledged(held: &mut [&mut Held]) -> Option<TopicPartitionList> {
    let held = held.iter_mut().map(|held| &mut **held);
    list(held.filter(|held| held.slot.mark() != held.acknowledged))
}

fn list<'a>(held: impl Iterator<Item = &'a mut Held>) -> Option<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for held in held {
        if let Some(mark) = held.slot.mark() {
            list.add_partition_offset(&held.slot.topic, held.slot.partition, Offset::Offset(mark))
                .expect("a mark is an offset of Kafka's or one more, and none is negative");
            held.sent = Some(mark);
        }
    }
    (list.count() > 0).then_some(list)
}

/// Takes down what the brokers said. Marks that failed are sent again with the next commit, as long
/// as their partition is ours.
pub(super) fn answered(
    assignment: &mut Assignment,
    result: KafkaResult<()>,
    offsets: &TopicPartitionList,
) -> Result<(), KafkaError> {
    let mut first = result.clone();
    for element in offsets.elements() {
        let Some(held) = assignment.get_mut(element.topic(), element.partition()) else {
            continue;
        };
        match (&result, element.error(), element.offset()) {
            (Ok(()), Ok(()), Offset::Offset(offset)) => held.acknowledged = Some(offset),
            (_, own, _) => {
                held.sent = held.acknowledged;
                first = first.and(own);
            }
        }
    }
    first
}

/// What a failed commit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It met a rebalance, or there was nothing to commit: no failure.
    Overtaken,
    /// The brokers are down, or busy: it is sent again.
    Transient,
    /// They refuse it.
    Refused,
}

impl Failure {
    pub(super) fn of(error: &KafkaError) -> Self {
        match error.rdkafka_error_code() {
            Some(
                Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::RebalanceInProgress
                | Code::StaleMemberEpoch
                | Code::FencedMemberEpoch
                | Code::AssignmentLost
                | Code::UnknownPartition
                | Code::NoOffset,
            ) => Self::Overtaken,
            Some(
                Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::MessageTimedOut
                | Code::TimedOutQueue
                | Code::WaitingForCoordinator
                | Code::InProgress
                | Code::PreviousInProgress
                | Code::Retry
                | Code::DestroyBroker
                | Code::RequestTimedOut
                | Code::BrokerNotAvailable
                | Code::NetworkException
                | Code::CoordinatorLoadInProgress
                | Code::CoordinatorNotAvailable
                | Code::NotCoordinator
                | Code::UnstableOffsetCommit
                | Code::UnknownTopicOrPartition
                | Code::ThrottlingQuotaExceeded,
            ) => Self::Transient,
            _ => Self::Refused,
        }
    }
}
