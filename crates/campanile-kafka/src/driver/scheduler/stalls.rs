//! Partitions whose offset does not move.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::timers::TimerId;
use crate::driver::assignment::AssignmentId;

/// The oldest unfinished record of each partition that has one, which is what the offset waits at. It is
/// looked at once a second, so that it costs the records nothing.
pub(super) struct Stalls {
    /// After which time a stall is logged.
    after: Duration,
    watched: HashMap<AssignmentId, Watched>,
    looks: u64,
    moved: Vec<Moved>,
}

/// The oldest unfinished record of a partition.
struct Watched {
    /// At which it was seen last.
    look: u64,
    offset: i64,
    since: Instant,
    doing: (Doing, Instant),
    /// When it is logged again, once it was.
    again: Option<Duration>,
}

/// What a record is doing. Another attempt and another wait is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    Running { troubles: u32 },
    Waiting(TimerId),
    Due,
}

/// For how long a record has been what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Still {
    /// It has been its partition's oldest unfinished record.
    pub(super) oldest: Duration,
    /// It has been doing what it does.
    pub(super) doing: Duration,
}

/// A stall that was logged and is over, and how long it took.
pub(super) type Moved = (AssignmentId, Duration);

impl Stalls {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, watched: HashMap::new(), looks: 0, moved: Vec::new() }
    }

    /// Takes in the oldest record of a partition.
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

    /// Returns whether the stall is to be logged: once it is long enough, and again whenever that has doubled.
    pub(super) fn is_due(&self, slot: AssignmentId, still: Still) -> bool {
        let watched = self.watched.get(&slot);
        watched.is_some_and(|watched| still.oldest >= watched.again.unwrap_or(self.after))
    }

    /// The stall was logged.
    pub(super) fn reported(&mut self, slot: AssignmentId, still: Still) {
        if let Some(watched) = self.watched.get_mut(&slot) {
            watched.again = Some(still.oldest.saturating_mul(2));
        }
    }

    /// Ends a round: partitions that were not seen have no unfinished record. Returns the stalls that are
    /// over, and since when each partition's oldest record has been that.
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

    /// One look at a partition whose oldest record this is: whether it is told.
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
        assert_eq!(stalls.end(now), (Vec::new(), HashMap::new()), "it was not told");
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
