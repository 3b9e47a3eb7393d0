//! Whether handlers give their thread back so quickly that a task for each would cost more than they do.

use std::time::Duration;

/// A handler with a poll that takes longer is worth a task: other threads can help then.
const QUICK: Duration = Duration::from_micros(5);

/// Over so many they are judged.
const ROUND: u32 = 128;

/// Of these, one in so many is timed: each of a handler's polls in its turn, however many it has.
const TIMED: u32 = 7;

/// No poll counts for more. One in ten that long is as bad as if all were too long; and one that was
/// interrupted by the system says nothing of its handler.
const LONGEST: Duration = Duration::from_micros(50);

/// So many in a row must be quick at the start: few, for there may be as many partitions as
/// records.
const FIRST: u32 = 16;

/// At most so many in a row must be quick until they are run here once more.
const MOST: u32 = 64 * 1024;

/// What the handlers of a partition did lately. They are run here while they are quick.
pub(super) struct Pace {
    quick: bool,
    /// How many with a task have ended without a long poll, one after the other.
    row: u32,
    /// How many must: the more often that was not worth it, the more.
    needed: u32,
    /// How many polls were made here since they are.
    here: u32,
    round: Round,
}

/// The last polls that were made here.
#[derive(Default)]
struct Round {
    ran: u32,
    timed: u32,
    /// How long those took together that were timed.
    took: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { quick: false, row: 0, needed: FIRST, here: 0, round: Round::default() }
    }

    /// Whether the next is to be run here.
    pub(super) fn is_quick(&self) -> bool {
        self.quick
    }

    /// One with a task of its own has ended; `quick`: none of its polls was long.
    pub(super) fn ended(&mut self, quick: bool) {
        if self.quick {
            return;
        }
        self.row = if quick { self.row + 1 } else { 0 };
        if self.row >= self.needed {
            (self.quick, self.row, self.here) = (true, 0, 0);
        }
    }

    /// Whether the next poll that is made here is to be timed.
    pub(super) fn is_timed(&self) -> bool {
        self.round.ran.is_multiple_of(TIMED)
    }

    /// One was polled here, for so long, if that was timed.
    pub(super) fn ran(&mut self, took: Option<Duration>) {
        if !self.quick {
            return;
        }
        let round = &mut self.round;
        round.ran += 1;
        if let Some(took) = took {
            round.timed += 1;
            round.took += took.min(LONGEST);
        }
        if round.ran < ROUND {
            return;
        }
        let Round { ran, timed, took } = std::mem::take(round);
        self.here = self.here.saturating_add(ran);
        if took > QUICK * timed {
            self.slow();
        } else if self.here >= MOST {
            self.needed = FIRST;
        }
    }

    /// It is not worth it, for now.
    pub(super) fn slow(&mut self) {
        if self.quick {
            (self.quick, self.row, self.round) = (false, 0, Round::default());
            self.needed = (self.needed * 2).min(MOST);
        }
    }
}

/// Whether a poll that took so long is worth a task.
pub(super) fn is_long(took: Duration) -> bool {
    took > QUICK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Pace {
        let mut pace = Pace::new();
        (0..FIRST).for_each(|_| pace.ended(true));
        assert!(pace.is_quick());
        pace
    }

    #[test]
    fn only_handlers_that_are_quick_one_after_the_other_are_run_here() {
        let mut pace = Pace::new();
        for _ in 0..1000 {
            (1..FIRST).for_each(|_| pace.ended(true));
            pace.ended(false);
        }
        assert!(!pace.is_quick());
        (0..FIRST).for_each(|_| pace.ended(true));
        assert!(pace.is_quick());
    }

    /// Runs a round, in which polls take so long.
    fn run(pace: &mut Pace, takes: impl Fn(u32) -> Duration) {
        for n in 0..ROUND {
            let took = pace.is_timed().then(|| takes(n));
            pace.ran(took);
        }
    }

    #[test]
    fn those_with_polls_that_are_too_long_on_average_get_a_task_again() {
        let mut pace = quick();
        run(&mut pace, |_| QUICK);
        assert!(pace.is_quick());
        run(&mut pace, |_| QUICK + Duration::from_nanos(1));
        assert!(!pace.is_quick());
    }

    #[test]
    fn a_poll_in_ten_that_is_very_long_is_too_much_whatever_the_others_take() {
        for polls in 2..=8 {
            let mut pace = quick();
            (0..8).for_each(|_| run(&mut pace, |_| QUICK / 2));
            assert!(pace.is_quick());
            // The last poll of each handler.
            let takes = |n| if n % polls == polls - 1 { QUICK * 1000 } else { Duration::ZERO };
            (0..8).for_each(|round| run(&mut pace, |n| takes(round * ROUND + n)));
            assert!(!pace.is_quick(), "{polls} polls");
        }
    }

    #[test]
    fn the_more_often_it_was_not_worth_it_the_more_must_be_quick() {
        let mut pace = quick();
        for times in 1..40 {
            pace.slow();
            let needed = (FIRST << times.min(12)).min(MOST);
            (1..needed).for_each(|_| pace.ended(true));
            assert!(!pace.is_quick());
            pace.ended(true);
            assert!(pace.is_quick());
        }
        (0..MOST / ROUND).for_each(|_| run(&mut pace, |_| QUICK / 2));
        pace.slow();
        (0..2 * FIRST).for_each(|_| pace.ended(true));
        assert!(pace.is_quick());
    }
}
