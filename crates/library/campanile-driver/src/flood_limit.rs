//! Detection of floods of dead letters, which point to a cause outside of the records.

use std::collections::VecDeque;
use std::sync::Arc;

/// A limit that pauses the consumer when too many records become dead letters. If a dependency is
/// unavailable, or a broken handler was deployed, every record fails, and the whole topic would be
/// moved into another.
///
/// The limit counts dead letters among the last finished records (processed, skipped or
/// dead-lettered), however long those took. Before the publication that would exceed the limit, the
/// consumer pauses: no records are dispatched, the record keeps its place, and an event at level
/// ERROR says why. A record that is in flight at that time and would become a dead letter keeps its
/// place as well. A record that is held this way gets its last attempt back (a bounded number of
/// times, so that a record that crashes the process is still given up in the end), and the consumer
/// stays in its group. After [`Handle::resume`](crate::Handle::resume), the records that were held
/// are tried again, and the limit counts from zero.
///
/// Default: at most 50 of the last 100 records. Bad records alone do not make up half of a topic,
/// and 50 letters can be inspected by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct FloodLimit(Option<Limit>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    limit: usize,
    window: usize,
}

impl FloodLimit {
    /// Allows at most `limit` dead letters among the last `window` finished records. `window` is
    /// at least 1. If `limit` is 0, the consumer pauses before the first dead letter.
    pub fn new(limit: usize, window: usize) -> Self {
        Self(Some(Limit { limit, window: window.max(1) }))
    }

    /// Publishes a dead letter for every record that is given up, without a limit.
    pub fn disabled() -> Self {
        Self(None)
    }
}

impl Default for FloodLimit {
    fn default() -> Self {
        Self::new(50, 100)
    }
}

/// Counts the finished records.
pub(crate) struct FloodCounter {
    limit: FloodLimit,
    /// The last finished records, and whether each became a dead letter.
    last: VecDeque<bool>,
    /// One clone for each publication in flight.
    in_flight: Arc<()>,
}

/// Marks a publication as in flight until this value is dropped.
#[derive(Debug)]
pub(crate) struct FloodPermit {
    _in_flight: Arc<()>,
}

/// The limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) limit: usize,
    pub(crate) window: usize,
}

impl FloodCounter {
    pub(crate) fn new(limit: FloodLimit) -> Self {
        Self { limit, last: VecDeque::new(), in_flight: Arc::new(()) }
    }

    /// Admits one more publication, unless it would exceed the limit. Publications in flight count
    /// as dead letters.
    pub(crate) fn admit(&self) -> Result<FloodPermit, LimitExceeded> {
        if let FloodLimit(Some(Limit { limit, window })) = self.limit {
            let in_flight = Arc::strong_count(&self.in_flight);
            let before = self.last.iter().rev().take(window.saturating_sub(in_flight));
            if before.filter(|&&dead| dead).count() + in_flight > limit {
                return Err(LimitExceeded { limit, window });
            }
        }
        Ok(FloodPermit { _in_flight: self.in_flight.clone() })
    }

    /// Counts a finished record.
    pub(crate) fn record_finished(&mut self, dead: bool) {
        let FloodLimit(Some(Limit { window, .. })) = self.limit else {
            return;
        };
        if self.last.len() == window {
            self.last.pop_front();
        }
        self.last.push_back(dead);
    }

    /// Resets the count.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flood(limit: usize, window: usize) -> FloodCounter {
        FloodCounter::new(FloodLimit::new(limit, window))
    }

    #[test]
    fn publication_over_the_limit_is_not_admitted() {
        let mut flood = flood(2, 4);
        for _ in 0..2 {
            flood.admit().unwrap();
            flood.record_finished(true);
        }
        assert_eq!(flood.admit().unwrap_err(), LimitExceeded { limit: 2, window: 4 });
        flood.record_finished(false);
        flood.admit().unwrap_err();
        // The next record is the fourth after the first, so the first is no longer among the last
        // four.
        flood.record_finished(false);
        flood.admit().unwrap();
    }

    #[test]
    fn in_flight_publications_count_until_dropped() {
        let flood = flood(2, 4);
        let one = flood.admit().unwrap();
        let _other = flood.admit().unwrap();
        flood.admit().unwrap_err();
        drop(one);
        flood.admit().unwrap();
    }

    #[test]
    fn counter_keeps_only_the_last_records() {
        let mut flood = flood(2, 4);
        (0..1000).for_each(|_| flood.record_finished(false));
        assert_eq!(flood.last.len(), 4);
    }

    #[test]
    fn cleared_counter_starts_from_zero() {
        let mut flood = flood(1, 4);
        flood.record_finished(true);
        flood.admit().unwrap_err();
        flood.clear();
        flood.admit().unwrap();
    }

    #[test]
    fn disabled_limit_admits_all_and_zero_limit_none() {
        let mut off = FloodCounter::new(FloodLimit::disabled());
        (0..1000).for_each(|_| off.record_finished(true));
        off.admit().unwrap();
        flood(0, 0).admit().unwrap_err();
    }
}
