//! The number of records by outcome.

use std::iter::Sum;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of records by outcome, since the start of serving. The result of serving has those of
/// the whole time, and [`Handle::status`](crate::Handle::status) those until now.
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
    /// Records that were given up and committed, by `OnGiveUp::Skip`, by
    /// `Consumer::skip_at`, or by an error that asks for this and does
    /// not come through the layer.
    pub skipped: u64,
    /// Records that were given up, published to a dead-letter topic, and committed.
    pub dead_lettered: u64,
    /// Records that were published to a retry topic, and committed. The copy
    /// counts as another record when it is received from there.
    pub deferred: u64,
    /// Records that were dropped unfinished because their partition was revoked,
    /// [stopped](crate::epilogue::GiveUpAction::StopPartition) or [sought](crate::Handle::seek). Its next owner
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

impl Sum for Summary {
    fn sum<I: Iterator<Item = Self>>(summaries: I) -> Self {
        summaries.fold(Self::default(), |sum, other| Self {
            received: sum.received + other.received,
            processed: sum.processed + other.processed,
            skipped: sum.skipped + other.skipped,
            dead_lettered: sum.dead_lettered + other.dead_lettered,
            deferred: sum.deferred + other.deferred,
            revoked: sum.revoked + other.revoked,
            unfinished: sum.unfinished + other.unfinished,
            retried: sum.retried + other.retried,
            inconclusive: sum.inconclusive + other.inconclusive,
        })
    }
}

/// The summary of one partition while the consumer serves. The driver counts, and any thread reads.
#[derive(Default)]
pub(crate) struct SummaryCounters {
    pub(crate) received: Count,
    pub(crate) processed: Count,
    pub(crate) skipped: Count,
    pub(crate) dead_lettered: Count,
    pub(crate) deferred: Count,
    pub(crate) revoked: Count,
    pub(crate) unfinished: Count,
    pub(crate) retried: Count,
    pub(crate) inconclusive: Count,
}

impl SummaryCounters {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            received: self.received.get(),
            processed: self.processed.get(),
            skipped: self.skipped.get(),
            dead_lettered: self.dead_lettered.get(),
            deferred: self.deferred.get(),
            revoked: self.revoked.get(),
            unfinished: self.unfinished.get(),
            retried: self.retried.get(),
            inconclusive: self.inconclusive.get(),
        }
    }
}

/// A number that only one thread changes.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get() + n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
