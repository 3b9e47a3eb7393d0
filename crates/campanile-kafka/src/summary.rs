//! What a consumer did.

/// What became of the records, from the start of serving to its end.
///
/// `received` is the sum of `processed`, `skipped`, `dead_lettered`, `deferred`, `revoked` and `left`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Records taken from Kafka.
    pub received: u64,
    /// The service answered `Ok`, and so the offset is committed, or was about to be. Duplicates are
    /// among them, and keys that are given up for good: the driver does not look at the response. So
    /// is what a handler inside the layer skips: the layer makes its entry FAILED and answers `Ok` with
    /// [`Outcome::Parked`](campanile_core::Outcome::Parked). Count those by tower's `map_response`
    /// around the layer.
    pub processed: u64,
    /// Given up by [`GivenUp::Skip`](crate::GivenUp::Skip), or by an error that says so and does not
    /// come through the layer, and committed.
    pub skipped: u64,
    /// Given up and published to a topic for dead letters, and committed.
    pub dead_lettered: u64,
    /// Published to a [retry topic](crate::RetryTopics), and committed. The copy is another record
    /// when it is taken from there.
    pub deferred: u64,
    /// Let go unfinished because their partition was revoked; its next owner has them.
    pub revoked: u64,
    /// Let go unfinished at the end; they come again.
    pub left: u64,
    /// Attempts that failed, or panicked, and were to be followed by another.
    pub retried: u64,
    /// Attempts that said nothing about the record: the key was locked or backing off, its lock was
    /// lost, or the store was down.
    pub waited: u64,
}
