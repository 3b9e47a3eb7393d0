//! Detection of stalled partitions: their offset does not advance.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::timers::TimerId;
use crate::driver::assignment::AssignmentId;

/// Tracks the oldest unfinished record of each partition, which holds back the partition's offset.
/// Sampled once a second, so that tracking adds no cost per record.
pub(super) struct Stalls {
    /// How long a partition must be stalled before the stall is logged.
    after: Duration,
    watched: HashMap<AssignmentId, Watched>,
    looks: u64,
    moved: Vec<Moved>,
}

/// The oldest unfinished record of a partition.
struct Watched {
    /// The last round in which the record was seen.
    look: u64,
    offset: i64,
    since: Instant,
    doing: (Doing, Instant),
    /// The duration at which the stall is logged again, once it was logged.
    again: Option<Duration>,
}

/// What a record is doing. Each attempt and each wait is a distinct value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    Running { troubles: u32 },
    Waiting(TimerId),
    Due,
}

/// How long a record has been in its present state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Still {
    /// How long it has been its partition's oldest unfinished record.
    pub(super) oldest: Duration,
    /// How long it has been doing what it is doing now.
    pub(super) doing: Duration,
}

/// A logged stall that is over, and its duration.
pub(super) type Moved = (AssignmentId, Duration);

impl Stalls {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, watched: HashMap::new(), looks: 0, moved: Vec::new() }
    }

    /// Tracks the oldest unfinished record of a partition, as seen in this round. Returns how long
    /// it has been in its present state.
    pub(super) fn see(
        &mut self,
        slot: AssignmentId,
        offset: i64,
        doing: Doing,
        now: Instant,
    ) -> Still {
        let new = || Watched { look: 0, offset, since: now, doing: (doing, now), again: None };
        let watched = self.watched.entry(slot).or_insert_with(new);
        if watched.offset != offset {
            if watched.again.is_some() {
                self.moved.push((slot, now - watched.since));
            }
            *watched = new();
        }
        if watched.doing.0 != doing {
            watched.doing = (doing, now);
        }
        watched.look = self.looks;
        Still { oldest: now - watched.since, doing: now - watched.doing.1 }
    }

    /// Returns whether to log the stall: once it has lasted long enough, and again each time its
    /// duration has doubled.
    pub(super) fn is_due(&self, slot: AssignmentId, still: Still) -> bool {
        let watched = self.watched.get(&slot);
        watched.is_some_and(|watched| still.oldest >= watched.again.unwrap_or(self.after))
    }

    /// Notes that the stall was logged.
    pub(super) fn reported(&mut self, slot: AssignmentId, still: Still) {
        if let Some(watched) = self.watched.get_mut(&slot) {
            watched.again = Some(still.oldest.saturating_mul(2));
        }
    }

    /// Ends a round. Partitions that were not seen in it have no unfinished record. Returns the
    /// stalls that are over, and since when each partition's oldest record has been the oldest.
    pub(super) fn end(&mut self, now: Instant) -> (Vec<Moved>, HashMap<AssignmentId, Instant>) {
        let mut moved = std::mem::take(&mut self.moved);
        self.watched.retain(|slot, watched| {
            let seen = watched.look == self.looks;
            if !seen && watched.again.is_some() {
                moved.push((*slot, now - watched.since));
            }
            seen
        });
        self.looks += 1;
        (moved, self.watched.iter().map(|(slot, watched)| (*slot, watched.since)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: AssignmentId = AssignmentId(7);
    const MINUTE: Duration = Duration::from_secs(60);
    const RUNNING: Doing = Doing::Running { troubles: 0 };

    /// Samples a partition once. Returns whether the stall is logged.
    fn look(stalls: &mut Stalls, offset: i64, doing: Doing, now: Instant) -> (bool, Still) {
        let still = stalls.see(SLOT, offset, doing, now);
        let due = stalls.is_due(SLOT, still);
        if due {
            stalls.reported(SLOT, still);
        }
        (due, still)
    }

    #[test]
    fn stall_is_logged_when_long_enough_and_whenever_it_doubles() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        let mut told = Vec::new();
        for minute in 0..9 {
            if look(&mut stalls, 5, RUNNING, start + MINUTE * minute).0 {
                told.push(minute);
            }
            assert_eq!(stalls.end(start).0, []);
        }
        assert_eq!(told, [1, 2, 4, 8]);
        let now = start + MINUTE * 9;
        assert!(!look(&mut stalls, 6, RUNNING, now).0);
        assert_eq!(stalls.end(now).0, [(SLOT, MINUTE * 9)]);
        assert_eq!(stalls.end(now), (Vec::new(), HashMap::new()), "the stall was not logged");
    }

    #[test]
    fn partition_that_moves_is_never_logged() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        for minute in 0..5 {
            let now = start + MINUTE * minute;
            assert!(!look(&mut stalls, i64::from(minute), RUNNING, now).0);
            assert_eq!(stalls.end(now).1, HashMap::from([(SLOT, now)]));
        }
        assert_eq!(stalls.end(start).1, HashMap::new());
        let (told, still) = look(&mut stalls, 4, RUNNING, start + MINUTE * 9);
        assert_eq!((told, still.oldest), (false, Duration::ZERO));
    }

    #[test]
    fn stall_ends_with_its_last_record() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        for minute in 0..2 {
            look(&mut stalls, 5, RUNNING, start + MINUTE * minute);
            stalls.end(start);
        }
        assert_eq!(stalls.end(start + MINUTE * 3).0, [(SLOT, MINUTE * 3)]);
    }

    #[test]
    fn another_attempt_does_not_move_the_offset() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        look(&mut stalls, 5, RUNNING, start);
        let now = start + MINUTE / 2;
        let (_, still) = look(&mut stalls, 5, Doing::Running { troubles: 1 }, now);
        assert_eq!(still, Still { oldest: MINUTE / 2, doing: Duration::ZERO });
    }
}
