//! Offset commits: what is committed, and what a failure means.

use std::collections::HashMap;
use std::sync::Arc;

use campanile_driver::source::{Assignment, CommitResult};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use crate::offset_identity::add_offset;

/// An offset to commit, with the leader epoch of the records before it.
pub(super) struct Uncommitted {
    pub(super) assignment: Arc<Assignment>,
    offset: i64,
    leader_epoch: Option<i32>,
}

impl Uncommitted {
    /// Collects the watermarks that are not committed.
    pub(super) fn of(partitions: &[Arc<Assignment>]) -> Vec<Self> {
        let of = |assignment: &Arc<Assignment>| {
            let (offset, leader_epoch) = (assignment.uncommitted()?, assignment.leader_epoch());
            Some(Self { assignment: assignment.clone(), offset, leader_epoch })
        };
        partitions.iter().filter_map(of).collect()
    }

    /// Checks whether the offset may still be committed: the partition is not released, and its position was
    /// not reset.
    pub(super) fn is_current(&self) -> bool {
        !self.assignment.is_closed() && self.assignment.uncommitted() >= Some(self.offset)
    }

    pub(super) fn add_to(&self, list: &mut TopicPartitionList) {
        add_offset(list, &self.assignment, self.offset, self.leader_epoch);
    }
}

/// The state of offset commits, of which at most one is in flight at a time.
#[derive(Default)]
pub(super) struct OffsetCommits {
    /// The partitions of the commit in flight. They may be revoked before the answer arrives.
    in_flight: Vec<Arc<Assignment>>,
    /// Whether the last commit failed, so that an outage is logged once.
    failing: bool,
}

impl OffsetCommits {
    pub(super) fn start(&mut self, offsets: Vec<Uncommitted>) {
        self.in_flight = offsets.into_iter().map(|offset| offset.assignment).collect();
    }

    /// Checks whether the commit in flight is for a partition that was released.
    pub(super) fn has_released_in_flight(&self) -> bool {
        self.in_flight.iter().any(|assignment| assignment.is_closed())
    }

    /// Handles the answer to the commit in flight.
    pub(super) fn handle_response(
        &mut self,
        result: KafkaResult<()>,
        offsets: &TopicPartitionList,
    ) -> CommitResult {
        let in_flight = std::mem::take(&mut self.in_flight);
        let partitions: HashMap<_, _> =
            in_flight.iter().map(|it| ((&*it.topic, it.partition), it)).collect();
        let mut first = result.clone();
        for element in offsets.elements() {
            match (&result, element.error(), element.offset()) {
                (Ok(()), Ok(()), Offset::Offset(offset)) => {
                    if let Some(assignment) =
                        partitions.get(&(element.topic(), element.partition()))
                    {
                        assignment.set_committed(offset);
                    }
                }
                (_, own, _) => first = first.and(own),
            }
        }
        self.finish(first)
    }

    /// Logs when commits begin to fail, and when they succeed again.
    pub(super) fn finish(&mut self, result: KafkaResult<()>) -> CommitResult {
        let error = match result {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("offset commits succeed again");
                }
                return CommitResult::Acknowledged;
            }
            Err(error) => error,
        };
        let failure = CommitFailure::of(&error);
        if matches!(failure, CommitFailure::Superseded | CommitFailure::DuringRebalance) {
            tracing::debug!(%error, "an offset commit was superseded by a rebalance");
        } else if !std::mem::replace(&mut self.failing, true) {
            let refused = failure == CommitFailure::Refused;
            tracing::warn!(%error, refused, "failed to commit offsets; retrying");
        }
        match failure {
            CommitFailure::Transient | CommitFailure::DuringRebalance => CommitResult::Failed,
            CommitFailure::Superseded | CommitFailure::Refused => CommitResult::Refused,
        }
    }
}

/// The meaning of a failed commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitFailure {
    /// A rebalance came first, or there was nothing to commit. This is not a failure.
    Superseded,
    /// The group is being rebalanced, or the consumer is about to learn its new epoch. This is not
    /// a failure either, and a repeated commit may succeed.
    DuringRebalance,
    /// The brokers are unavailable or busy.
    Transient,
    /// The brokers refuse the commit.
    Refused,
}

impl CommitFailure {
    pub(super) fn of(error: &KafkaError) -> Self {
        match error.rdkafka_error_code() {
            Some(
                Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::FencedMemberEpoch
                | Code::AssignmentLost
                | Code::UnknownPartition
                | Code::NoOffset,
            ) => Self::Superseded,
            Some(Code::RebalanceInProgress | Code::StaleMemberEpoch) => Self::DuringRebalance,
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
                | Code::UnknownTopic
                | Code::LeaderNotAvailable
                | Code::ThrottlingQuotaExceeded,
            ) => Self::Transient,
            _ => Self::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_during_a_rebalance_is_repeated() {
        let finish = |code| OffsetCommits::default().finish(Err(KafkaError::ConsumerCommit(code)));
        for code in [Code::RebalanceInProgress, Code::StaleMemberEpoch] {
            assert_eq!(finish(code), CommitResult::Failed);
        }
        for code in [Code::IllegalGeneration, Code::UnknownMemberId, Code::FencedMemberEpoch] {
            assert_eq!(finish(code), CommitResult::Refused);
        }
    }
}
