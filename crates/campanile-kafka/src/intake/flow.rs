//! Back-pressure: when to read, and which partitions to pause.
//!
//! A budget that is full for a moment is the usual state of a busy consumer: reading stops, and goes
//! on when there is room. Only one that stays full is a stall. Then the partitions that hold the most
//! are paused, so that one whose record waits for minutes does not hold up the others; these get a
//! small allowance beyond the budget.

use std::time::Duration;

use super::control::LOW_WATER;

/// For how long reading may just stop: meanwhile nobody serves the callbacks of a rebalance.
const STALL: Duration = Duration::from_millis(100);

/// The part of the budget that partitions share beyond it while others fill it.
pub(super) const ALLOWANCE: f64 = 0.25;

/// How reading goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Flow {
    Open,
    /// The budget is full, since then.
    Full {
        since: Duration,
    },
    /// It has been full for too long.
    Stalled,
}

impl Flow {
    /// Where it stands now, at this level of the budget.
    pub(super) fn next(self, level: f64, now: Duration) -> Self {
        match self {
            Self::Open if level >= 1.0 => Self::Full { since: now },
            Self::Full { .. } | Self::Stalled if level < LOW_WATER => Self::Open,
            Self::Full { since } if now.saturating_sub(since) >= STALL => Self::Stalled,
            same => same,
        }
    }

    /// Whether a partition that reads and holds this part of the budget is to be paused.
    pub(super) fn pauses(self, held: f64, partitions: usize) -> bool {
        self == Self::Stalled && held > ALLOWANCE / partitions as f64
    }

    /// Whether a partition that is paused and holds this part of the budget is to read again.
    pub(super) fn resumes(self, held: f64, partitions: usize) -> bool {
        let share = if self == Self::Stalled {
            ALLOWANCE / 2.0
        } else {
            1.0
        };
        held <= share / partitions as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn a_budget_that_is_full_for_a_moment_pauses_nothing() {
        let full = Flow::Open.next(1.0, NOW);
        assert_eq!(full, Flow::Full { since: NOW });
        assert!(!full.pauses(1.0, 1));
        let still = full.next(0.8, NOW + STALL / 2);
        assert_eq!(still, full);
        assert_eq!(still.next(0.7, NOW + STALL / 2), Flow::Open);
    }

    #[test]
    fn in_a_stall_the_partitions_that_hold_most_are_paused_and_the_others_read_on() {
        let stalled = Flow::Full { since: NOW }.next(1.0, NOW + STALL);
        assert_eq!(stalled, Flow::Stalled);
        assert!(stalled.pauses(0.9, 4));
        assert!(!stalled.pauses(0.05, 4));
        assert!(!stalled.resumes(0.05, 4));
        assert!(stalled.resumes(0.03, 4));
    }

    #[test]
    fn after_a_stall_whoever_holds_no_more_than_its_share_reads_again() {
        let open = Flow::Stalled.next(0.7, NOW);
        assert_eq!(open, Flow::Open);
        assert!(open.resumes(0.25, 4));
        assert!(!open.resumes(0.3, 4), "it would fill the budget again");
    }

    #[test]
    fn a_lone_partition_reads_again_at_low_water() {
        assert!(Flow::Stalled.pauses(1.0, 1));
        assert!(Flow::Stalled.next(0.74, NOW).resumes(0.74, 1));
    }
}
