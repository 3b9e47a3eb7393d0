//! When so much dies that it is not the records' fault.

use std::collections::VecDeque;
use std::sync::Arc;

/// Pauses the consumer when too many records become dead letters: a dependency that is down, or a
/// handler that was deployed broken, fails every record, and would empty the whole topic into another.
///
/// What is counted is the last so many records that were finished, in whatever time: processed,
/// skipped or dead-lettered. Before the publication that would exceed the limit, the consumer pauses:
/// nothing is dispatched, the record keeps its place, and an event at level ERROR says why. So does
/// each record that is at work meanwhile and would become a dead letter. What is held so gets its last
/// attempt back (a bounded number of times, so that what ends the process still comes to an end), and
/// the consumer stays in its group. [`Handle::resume`](crate::Handle::resume) goes on: what was held
/// is tried again, and the guard counts from the beginning.
///
/// Default: at most 50 of the last 100. Half of what comes is more than a topic has of bad records,
/// and 50 letters can be looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodGuard(Option<Limit>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    most: usize,
    of_last: usize,
}

impl FloodGuard {
    /// At most so many dead letters among the last `of_last` finished records; these are at least 1.
    /// With `most` at 0, it pauses before the first.
    pub fn new(most: usize, of_last: usize) -> Self {
        Self(Some(Limit { most, of_last: of_last.max(1) }))
    }

    /// Whatever is given up is published.
    pub fn off() -> Self {
        Self(None)
    }
}

impl Default for FloodGuard {
    fn default() -> Self {
        Self::new(50, 100)
    }
}

/// Counts what is finished.
pub(crate) struct Flood {
    guard: FloodGuard,
    /// The last that were finished, and whether each is a dead letter.
    last: VecDeque<bool>,
    /// One clone for each publication that is under way.
    under_way: Arc<()>,
}

/// That a publication is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Passage {
    _under_way: Arc<()>,
}

/// The limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flooded {
    pub(crate) most: usize,
    pub(crate) of_last: usize,
}

impl Flood {
    pub(crate) fn new(guard: FloodGuard) -> Self {
        Self { guard, last: VecDeque::new(), under_way: Arc::new(()) }
    }

    /// Whether one more may be published. Those that are under way count as if they were.
    pub(crate) fn admit(&self) -> Result<Passage, Flooded> {
        if let FloodGuard(Some(Limit { most, of_last })) = self.guard {
            let new = Arc::strong_count(&self.under_way);
            let before = self.last.iter().rev().take(of_last.saturating_sub(new));
            if before.filter(|&&dead| dead).count() + new > most {
                return Err(Flooded { most, of_last });
            }
        }
        Ok(Passage { _under_way: self.under_way.clone() })
    }

    /// A record was finished.
    pub(crate) fn finished(&mut self, dead: bool) {
        let FloodGuard(Some(Limit { of_last, .. })) = self.guard else {
            return;
        };
        if self.last.len() == of_last {
            self.last.pop_front();
        }
        self.last.push_back(dead);
    }

    /// Counts from the beginning.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flood(most: usize, of_last: usize) -> Flood {
        Flood::new(FloodGuard::new(most, of_last))
    }

    #[test]
    fn the_publication_that_would_exceed_the_limit_is_not_admitted() {
        let mut flood = flood(2, 4);
        for _ in 0..2 {
            flood.admit().unwrap();
            flood.finished(true);
        }
        assert_eq!(flood.admit().unwrap_err(), Flooded { most: 2, of_last: 4 });
        flood.finished(false);
        flood.admit().unwrap_err();
        // The next is the fourth after the first, which then is none of the last four.
        flood.finished(false);
        flood.admit().unwrap();
    }

    #[test]
    fn what_is_under_way_counts_and_what_came_to_nothing_does_not() {
        let flood = flood(2, 4);
        let one = flood.admit().unwrap();
        let _other = flood.admit().unwrap();
        flood.admit().unwrap_err();
        drop(one);
        flood.admit().unwrap();
    }

    #[test]
    fn it_remembers_no_more_than_it_counts() {
        let mut flood = flood(2, 4);
        (0..1000).for_each(|_| flood.finished(false));
        assert_eq!(flood.last.len(), 4);
    }

    #[test]
    fn after_it_was_cleared_it_counts_from_the_beginning() {
        let mut flood = flood(1, 4);
        flood.finished(true);
        flood.admit().unwrap_err();
        flood.clear();
        flood.admit().unwrap();
    }

    #[test]
    fn none_is_too_many_for_one_that_is_off_and_any_for_one_of_zero() {
        let mut off = Flood::new(FloodGuard::off());
        (0..1000).for_each(|_| off.finished(true));
        off.admit().unwrap();
        flood(0, 0).admit().unwrap_err();
    }
}
