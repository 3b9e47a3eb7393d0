//! The policy for records that are given up.

use super::dead_letter::DeadLetter;

/// What happens to a record that is given up: its attempts are used up, its error is permanent, or
/// it cannot be tried at all (it does not decode, it has no valid key, or its key was used for
/// another payload).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum OnGiveUp {
    /// Serving ends with [`ConsumerError::Stopped`](crate::ConsumerError::Stopped), and the
    /// record's offset is not committed. An event at level ERROR names the record, its error, and
    /// what to do. If the process is restarted without a change, it stops at the same record again;
    /// to let only this record pass, see [`Consumer::skip_at`](crate::Consumer::skip_at).
    ///
    /// The default, because any other policy either loses the record, unless the user has decided
    /// where it goes, or looks healthy while records wait.
    #[default]
    Stop,
    /// The record's partition is stopped, and all other partitions are processed. An event at level
    /// ERROR names the record, its error, and what to do, and
    /// [`PartitionStatus::stopped`](crate::PartitionStatus::stopped) reports the partition.
    ///
    /// The record's offset is not committed, and neither is any offset behind it. No further record
    /// of the partition is started, whatever the [order](crate::ProcessingOrder): those in flight
    /// may finish, and those that wait in memory are dropped, to be received again later. The
    /// partition is not read any more. In a [retry topic](crate::RetryTopics), this holds up the
    /// copies in that partition.
    ///
    /// The partition is read again, from the record on, by its next owner: after a restart, or after
    /// a rebalance that assigns it to another consumer or anew to this one. If nothing has changed,
    /// the partition is stopped at the same record again.
    ///
    /// The consumer stays [live and ready](crate::Health), even if all of its partitions are
    /// stopped. Raise an alert on the event, on the status or on the lag: nothing else shows that
    /// records wait.
    ///
    /// Errors that are classified as [`Disposition::Stop`](campanile_core::Disposition::Stop) still
    /// stop the consumer.
    StopPartition,
    /// The record is skipped: its key's entry becomes FAILED, with the error as its reason, then
    /// the offset is committed. Without a lock (the record was never tried), only the offset is
    /// committed. An event at level WARN names each skipped record.
    ///
    /// **Nothing limits this policy.** There is no [`FloodLimit`](crate::FloodLimit) for it: if a
    /// broken handler was deployed, or a dependency refuses everything, the whole topic is skipped.
    /// Where that would do harm, use a [`DeadLetter`] topic.
    Skip,
    /// The record is published to a dead-letter topic. When the brokers have acknowledged it, its
    /// key's entry becomes FAILED, and then the offset is committed.
    DeadLetter(DeadLetter),
}

impl From<DeadLetter> for OnGiveUp {
    fn from(policy: DeadLetter) -> Self {
        Self::DeadLetter(policy)
    }
}
