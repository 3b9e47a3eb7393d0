//! Back-pressure: when to read, and which partitions to pause.
//!
//! A busy consumer often has a full budget for a moment. Reading then stops, and continues when
//! there is room. Only a budget that stays full is a stall. Partitions are then paused, which is
//! expensive: their prefetched records are discarded, and librdkafka may take a second to fetch
//! from them again.
//!
//! A partition with a record that waits for minutes must not hold up the others. One of several
//! partitions may therefore hold at most half of the budget, and when several partitions have
//! filled the budget together, the others get a small allowance beyond it.

use std::time::Duration;

use super::LOW_WATER;

/// How long reading may stop before partitions are paused. After all partitions were paused,
/// librdkafka may take this long to fetch again, since nothing wakes its thread. A consumer that
/// needs longer than this for the part of the budget above the low-water mark needs three times as
/// long for the rest, so it never runs out of records meanwhile.
const STALL: Duration = Duration::from_secs(1);

/// The fraction of the budget that one of several partitions may hold.
const HOG: f64 = 0.5;

/// The fraction of the budget that the partitions of retry topics may hold together. Their records
/// wait for minutes, and other records must not wait with them.
const RETRIES: f64 = 0.25;

/// The fraction of the budget that partitions share beyond it while other partitions fill it. They
/// may exceed this allowance by as much again, since a partition is paused only after it was read
/// from.
pub(super) const ALLOWANCE: f64 = 0.125;

/// The state of reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Flow {
    Open,
    /// The budget has been full since this time.
    Full {
        since: Duration,
    },
    /// The budget has been full for too long.
    Stalled,
}

impl Flow {
    /// Returns the next state, given the level of the budget at this time.
    pub(super) fn next(self, level: f64, now: Duration) -> Self {
        match self {
            Self::Open if level >= 1.0 => Self::Full { since: now },
            Self::Full { .. } | Self::Stalled if level < LOW_WATER => Self::Open,
            Self::Full { since } if now.saturating_sub(since) >= STALL => Self::Stalled,
            same => same,
        }
    }

    /// Returns whether to pause a partition that is being read, holds the fraction `held` of the
    /// budget and may hold the fraction `most`.
    pub(super) fn pauses(self, held: f64, most: f64, partitions: usize) -> bool {
        let hog = partitions > 1 && held > most;
        hog || (self == Self::Stalled && held > ALLOWANCE / partitions as f64)
    }

    /// Returns whether to resume a paused partition that holds the fraction `held` of the budget
    /// and may hold the fraction `most`.
    pub(super) fn resumes(self, held: f64, most: f64, partitions: usize) -> bool {
        match self {
            Self::Stalled => held <= ALLOWANCE / 2.0 / partitions as f64,
            _ => partitions == 1 || held <= most / 2.0,
        }
    }
}

/// Returns the level of the budget below which no partition is paused, with or without retry
/// topics.
pub(super) fn calm(retries: bool) -> f64 {
    if retries { RETRIES } else { HOG }
}

/// Returns the fraction of the budget that one of several partitions may hold. For a partition of a
/// retry topic, `of_retries` is the number of such partitions that are assigned.
pub(super) fn most(of_retries: Option<usize>) -> f64 {
    of_retries.map_or(HOG, |retries| RETRIES / retries as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn a_budget_that_is_full_for_a_moment_pauses_nothing() {
        let full = Flow::Open.next(1.0, NOW);
        assert_eq!(full, Flow::Full { since: NOW });
        assert!(!full.pauses(1.0, HOG, 1) && !full.pauses(0.4, HOG, 4));
        let still = full.next(0.8, NOW + STALL / 2);
        assert_eq!(still, full);
        assert_eq!(still.next(0.7, NOW + STALL / 2), Flow::Open);
    }

    /// Returns whether any partition is paused within some minutes, if the brokers fill any room at
    /// once and the handlers finish this fraction of the budget per second.
    fn pauses(finished: f64, partitions: usize) -> bool {
        let round = Duration::from_millis(20);
        let (mut flow, mut level, mut now) = (Flow::Open, 0.0, NOW);
        for _ in 0..10_000 {
            flow = flow.next(level, now);
            if flow.pauses(level / partitions as f64, HOG, partitions) {
                return true;
            }
            if flow == Flow::Open && level < 1.0 {
                // The next round follows immediately.
                level = 1.0;
            } else {
                level -= finished * round.as_secs_f64();
                now += round;
            }
        }
        false
    }

    #[test]
    fn handlers_that_are_slower_than_the_brokers_pause_nothing_if_a_second_empties_a_quarter() {
        for partitions in [1, 2, 5, 100] {
            assert!(!pauses(0.27, partitions), "{partitions} partitions");
            assert!(pauses(0.23, partitions), "{partitions} partitions");
        }
    }

    #[test]
    fn one_of_several_partitions_is_paused_at_half_of_the_budget_until_it_has_gone_down() {
        assert!(Flow::Open.pauses(0.51, HOG, 2));
        assert!(!Flow::Open.resumes(0.3, HOG, 2));
        assert!(Flow::Open.resumes(0.25, HOG, 2));
    }

    #[test]
    fn partitions_of_retry_topics_hold_a_quarter_together_so_that_others_read_on() {
        let each = most(Some(5));
        assert!((each * 5.0 - RETRIES).abs() < 1e-9);
        assert!(Flow::Open.pauses(0.06, each, 10));
        assert!(!Flow::Open.pauses(0.04, each, 10));
        assert!(!Flow::Open.resumes(0.04, each, 10));
        assert!(Flow::Open.resumes(0.02, each, 10));
        assert!(!Flow::Open.pauses(0.06, most(None), 10));
    }

    #[test]
    fn in_a_stall_who_holds_more_than_the_allowance_is_paused_and_the_others_read_on() {
        let stalled = Flow::Full { since: NOW }.next(1.0, NOW + STALL);
        assert_eq!(stalled, Flow::Stalled);
        assert!(stalled.pauses(0.4, HOG, 4));
        assert!(!stalled.pauses(0.03, HOG, 4));
        assert!(!stalled.resumes(0.03, HOG, 4));
        assert!(stalled.resumes(0.015, HOG, 4));
    }

    #[test]
    fn after_a_stall_all_but_a_hog_read_again() {
        let open = Flow::Stalled.next(0.7, NOW);
        assert_eq!(open, Flow::Open);
        assert!(open.resumes(0.2, HOG, 4));
        assert!(!open.resumes(0.4, HOG, 4));
    }

    #[test]
    fn a_lone_partition_reads_again_at_low_water() {
        assert!(!Flow::Open.pauses(0.9, HOG, 1));
        assert!(Flow::Stalled.pauses(1.0, HOG, 1));
        assert!(Flow::Stalled.next(0.74, NOW).resumes(0.74, HOG, 1));
    }
}
