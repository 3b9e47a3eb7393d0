//! Rebalances, as the program can follow them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::source::Assignment;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

impl From<&Arc<Assignment>> for TopicPartition {
    fn from(assignment: &Arc<Assignment>) -> Self {
        Self { topic: assignment.topic.clone(), partition: assignment.partition }
    }
}

/// A change of the partitions that are assigned to a consumer. Returned by [`Rebalances::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rebalance {
    /// These partitions were assigned to the consumer. Their first records may already be in flight.
    Assigned(Vec<TopicPartition>),
    /// These partitions were revoked, or the consumer shuts down. None of their records is in flight
    /// any more: each has finished, or was dropped after the drain timeout. The offsets of finished
    /// records were committed, unless the brokers did not answer, and the consumer gives the partitions
    /// up now.
    Revoked(Vec<TopicPartition>),
    /// The consumer has lost these partitions without a warning, for example because its session timed
    /// out. Records in flight were dropped, and the offsets of finished records may not be committed:
    /// the next owner, which may have started long ago, gets these records again.
    Lost(Vec<TopicPartition>),
}

/// The rebalances of a consumer, in order. Returned by [`Handle::rebalances`](crate::Handle::rebalances).
///
/// The consumer does not wait for the program to take a rebalance from here. A partition may be assigned
/// again before the program has seen that it was revoked. The program then finds both in order.
/// Rebalances that are not taken are kept in memory, so drop this when it is no longer needed.
#[derive(Debug)]
pub struct Rebalances(UnboundedReceiver<Rebalance>);

impl Rebalances {
    /// Waits for the next rebalance. Returns `None` once the consumer has ended, and all of its
    /// partitions were reported as revoked or lost.
    ///
    /// # Cancellation
    /// The future may be dropped at any time; no rebalance is missed.
    pub async fn next(&mut self) -> Option<Rebalance> {
        self.0.recv().await
    }
}

/// Sends rebalances to all that follow them.
#[derive(Default)]
pub(crate) struct RebalanceSender(Mutex<RebalanceState>);

#[derive(Default)]
struct RebalanceState {
    /// The partitions that were sent as assigned, and not as revoked or lost since.
    assigned: Vec<TopicPartition>,
    receivers: Vec<UnboundedSender<Rebalance>>,
    ended: bool,
}

impl RebalanceSender {
    /// Adds a receiver, which first gets the partitions that are assigned now.
    pub(crate) fn subscribe(&self) -> Rebalances {
        let (sender, receiver) = unbounded_channel();
        let mut state = self.state();
        if !state.ended {
            if !state.assigned.is_empty() {
                // The receiver is still here.
                let _ = sender.send(Rebalance::Assigned(state.assigned.clone()));
            }
            state.receivers.push(sender);
        }
        Rebalances(receiver)
    }

    pub(crate) fn send_assigned(&self, assignments: &[Arc<Assignment>]) {
        let mut state = self.state();
        let partitions: Vec<_> = assignments.iter().map(TopicPartition::from).collect();
        state.assigned.extend(partitions.iter().cloned());
        state.send(Rebalance::Assigned, partitions);
    }

    pub(crate) fn send_revoked(&self, assignments: &[Arc<Assignment>], lost: bool) {
        let mut state = self.state();
        let partitions: Vec<_> = assignments.iter().map(TopicPartition::from).collect();
        state.assigned.retain(|partition| !partitions.contains(partition));
        state.send(if lost { Rebalance::Lost } else { Rebalance::Revoked }, partitions);
    }

    /// Sends that the remaining partitions are lost, and ends all receivers.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        let assigned = std::mem::take(&mut state.assigned);
        state.send(Rebalance::Lost, assigned);
        state.receivers.clear();
        state.ended = true;
    }

    fn state(&self) -> MutexGuard<'_, RebalanceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RebalanceState {
    /// Sends a rebalance, unless it has no partitions. Removes receivers that were dropped.
    fn send(
        &mut self,
        rebalance: fn(Vec<TopicPartition>) -> Rebalance,
        partitions: Vec<TopicPartition>,
    ) {
        if !partitions.is_empty() {
            self.receivers.retain(|receiver| receiver.send(rebalance(partitions.clone())).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn assignments<const N: usize>(partitions: [i32; N]) -> Vec<Arc<Assignment>> {
        let assignment =
            |partition| Arc::new(Assignment::new("t".into(), partition, Arc::default()));
        partitions.map(assignment).into()
    }

    fn partitions<const N: usize>(partitions: [i32; N]) -> Vec<TopicPartition> {
        partitions.map(|partition| TopicPartition { topic: "t".into(), partition }).into()
    }

    #[tokio::test]
    async fn late_receiver_starts_with_the_current_partitions() {
        let sender = RebalanceSender::default();
        let mut early = sender.subscribe();
        sender.send_assigned(&assignments([0, 1]));
        sender.send_revoked(&assignments([1]), false);
        sender.send_assigned(&[]);
        let mut late = sender.subscribe();
        sender.send_assigned(&assignments([1]));
        sender.send_revoked(&assignments([0]), true);
        assert_eq!(early.next().await, Some(Rebalance::Assigned(partitions([0, 1]))));
        assert_eq!(early.next().await, Some(Rebalance::Revoked(partitions([1]))));
        assert_eq!(late.next().await, Some(Rebalance::Assigned(partitions([0]))));
        for receiver in [&mut early, &mut late] {
            assert_eq!(receiver.next().await, Some(Rebalance::Assigned(partitions([1]))));
            assert_eq!(receiver.next().await, Some(Rebalance::Lost(partitions([0]))));
            assert_eq!(receiver.next().now_or_never(), None);
        }
    }

    #[tokio::test]
    async fn receivers_end_after_all_partitions_are_reported() {
        let sender = RebalanceSender::default();
        let mut receiver = sender.subscribe();
        drop(sender.subscribe());
        sender.send_assigned(&assignments([0]));
        assert_eq!(sender.state().receivers.len(), 1, "the dropped receiver is removed");
        sender.end();
        assert_eq!(receiver.next().await, Some(Rebalance::Assigned(partitions([0]))));
        assert_eq!(receiver.next().await, Some(Rebalance::Lost(partitions([0]))));
        assert_eq!(receiver.next().await, None);
        assert_eq!(sender.subscribe().next().await, None);
    }
}
