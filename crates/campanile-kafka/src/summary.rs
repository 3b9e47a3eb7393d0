//! The result of serving.

/// The number of records by outcome, from the start of serving to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Records received from Kafka.
    pub received: u64,
    /// Records for which the service returned `Ok`, so that the offset is committed or was about to
    /// be. Includes duplicates and keys that are given up for good, because the driver ignores the
    /// response. Also includes records that a handler inside the layer skips: the layer makes the
    /// entry FAILED and returns `Ok` with [`Outcome::GivenUp`](campanile_core::Outcome::GivenUp). Use
    /// tower's `map_response` around the layer to count those.
    pub processed: u64,
    /// Records that were given up and committed, by [`OnGiveUp::Skip`](crate::OnGiveUp::Skip), by
    /// [`Consumer::skip_at`](crate::Consumer::skip_at), or by an error that asks for this and does
    /// not come through the layer.
    pub skipped: u64,
    /// Records that were given up, published to a dead-letter topic, and committed.
    pub dead_lettered: u64,
    /// Records that were published to a [retry topic](crate::RetryTopics), and committed. The copy
    /// counts as another record when it is received from there.
    pub deferred: u64,
    /// Records that were dropped unfinished because their partition was revoked,
    /// [stopped](crate::OnGiveUp::StopPartition) or [sought](crate::Handle::seek). Its next owner
    /// receives them, unless a seek skipped them.
    pub revoked: u64,
    /// Records that were dropped unfinished at the end. They are received again.
    pub unfinished: u64,
    /// Attempts that failed or panicked, and were to be followed by another.
    pub retried: u64,
    /// Attempts that said nothing about the record: the key was locked or backing off, its lock was
    /// lost, or the store was unavailable.
    pub inconclusive: u64,
}
