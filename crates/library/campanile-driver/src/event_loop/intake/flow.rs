//! The thresholds of the budget: when to read, and which partitions to pause.
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

/// The fraction of the budget below which a full consumer reads again.
pub(crate) const RESUME_LEVEL: f64 = 0.75;

/// How long reading may stop before partitions are paused. After all partitions were paused,
/// librdkafka may take this long to fetch again, since nothing wakes its thread. A consumer that
/// needs longer than this for the part of the budget above the resume level needs three times as
/// long for the rest, so it never runs out of records meanwhile.
const STALL_AFTER: Duration = Duration::from_secs(1);

/// The fraction of the budget that one of several partitions may hold.
const PARTITION_SHARE: f64 = 0.5;

/// The fraction of the budget that the partitions with a delay may hold together. Their records
/// wait for minutes, and other records must not wait with them.
const DELAYED_SHARE: f64 = 0.25;

/// The fraction of the budget that partitions share beyond it while other partitions fill it. They
/// may exceed this allowance by as much again, since a partition is paused only after it was read
/// from.
pub(crate) const STALL_ALLOWANCE: f64 = 0.125;

/// The state of reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flow {
    Open,
    /// The budget has been full since this time.
    Full {
        since: Duration,
    },
    /// The budget has been full for too long.
    Stalled,
}

impl Flow {
    /// Computes the next state from the level of the budget at this time.
    pub(super) fn next(self, level: f64, now: Duration) -> Self {
        match self {
            Self::Open if level >= 1.0 => Self::Full { since: now },
            Self::Full { .. } | Self::Stalled if level < RESUME_LEVEL => Self::Open,
            Self::Full { since } if now.saturating_sub(since) >= STALL_AFTER => Self::Stalled,
            state => state,
        }
    }

    /// Decides whether to pause a partition that is being read, holds the fraction `held` of the
    /// budget and may hold the fraction `limit`.
    pub(crate) fn should_pause(self, held: f64, limit: f64, partitions: usize) -> bool {
        let over_share = partitions > 1 && held > limit;
        over_share || (self == Self::Stalled && held > STALL_ALLOWANCE / partitions as f64)
    }

    /// Decides whether to resume a paused partition that holds the fraction `held` of the budget
    /// and may hold the fraction `limit`.
    pub(crate) fn should_resume(self, held: f64, limit: f64, partitions: usize) -> bool {
        match self {
            Self::Stalled => held <= STALL_ALLOWANCE / 2.0 / partitions as f64,
            _ => partitions == 1 || held <= limit / 2.0,
        }
    }
}

/// Below this level of the budget no partition is paused. The level depends on whether there are
/// partitions with a delay.
pub(crate) fn pause_free_level(has_delays: bool) -> f64 {
    if has_delays { DELAYED_SHARE } else { PARTITION_SHARE }
}

/// Computes the fraction of the budget that one of several partitions may hold. For a partition
/// with a delay, `delayed_partitions` is the number of such partitions that are assigned.
pub(crate) fn share_limit(delayed_partitions: Option<usize>) -> f64 {
    delayed_partitions.map_or(PARTITION_SHARE, |partitions| DELAYED_SHARE / partitions as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn briefly_full_budget_pauses_nothing() {
        let full = Flow::Open.next(1.0, NOW);
        assert_eq!(full, Flow::Full { since: NOW });
        assert!(
            !full.should_pause(1.0, PARTITION_SHARE, 1)
                && !full.should_pause(0.4, PARTITION_SHARE, 4)
        );
        let still_full = full.next(0.8, NOW + STALL_AFTER / 2);
        assert_eq!(still_full, full);
        assert_eq!(still_full.next(0.7, NOW + STALL_AFTER / 2), Flow::Open);
    }

    /// Checks whether any partition is paused within some minutes, if the brokers fill any room at
    /// once and the handlers finish this fraction of the budget per second.
    fn pauses(finished: f64, partitions: usize) -> bool {
        let round = Duration::from_millis(20);
        let (mut flow, mut level, mut now) = (Flow::Open, 0.0, NOW);
        for _ in 0..10_000 {
            flow = flow.next(level, now);
            if flow.should_pause(level / partitions as f64, PARTITION_SHARE, partitions) {
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
    fn slow_handlers_pause_only_below_a_quarter_budget_per_second() {
        for partitions in [1, 2, 5, 100] {
            assert!(!pauses(0.27, partitions), "{partitions} partitions");
            assert!(pauses(0.23, partitions), "{partitions} partitions");
        }
    }

    #[test]
    fn partition_over_half_the_budget_is_paused_until_a_quarter() {
        assert!(Flow::Open.should_pause(0.51, PARTITION_SHARE, 2));
        assert!(!Flow::Open.should_resume(0.3, PARTITION_SHARE, 2));
        assert!(Flow::Open.should_resume(0.25, PARTITION_SHARE, 2));
    }

    #[test]
    fn delayed_partitions_share_a_quarter_of_the_budget() {
        let each = share_limit(Some(5));
        assert!((each * 5.0 - DELAYED_SHARE).abs() < 1e-9);
        assert!(Flow::Open.should_pause(0.06, each, 10));
        assert!(!Flow::Open.should_pause(0.04, each, 10));
        assert!(!Flow::Open.should_resume(0.04, each, 10));
        assert!(Flow::Open.should_resume(0.02, each, 10));
        assert!(!Flow::Open.should_pause(0.06, share_limit(None), 10));
    }

    #[test]
    fn stall_pauses_only_partitions_over_the_allowance() {
        let stalled = Flow::Full { since: NOW }.next(1.0, NOW + STALL_AFTER);
        assert_eq!(stalled, Flow::Stalled);
        assert!(stalled.should_pause(0.4, PARTITION_SHARE, 4));
        assert!(!stalled.should_pause(0.03, PARTITION_SHARE, 4));
        assert!(!stalled.should_resume(0.03, PARTITION_SHARE, 4));
        assert!(stalled.should_resume(0.015, PARTITION_SHARE, 4));
    }

    #[test]
    fn stall_end_resumes_partitions_within_their_share() {
        let open = Flow::Stalled.next(0.7, NOW);
        assert_eq!(open, Flow::Open);
        assert!(open.should_resume(0.2, PARTITION_SHARE, 4));
        assert!(!open.should_resume(0.4, PARTITION_SHARE, 4));
    }

    #[test]
    fn single_partition_resumes_at_the_resume_level() {
        assert!(!Flow::Open.should_pause(0.9, PARTITION_SHARE, 1));
        assert!(Flow::Stalled.should_pause(1.0, PARTITION_SHARE, 1));
        assert!(Flow::Stalled.next(0.74, NOW).should_resume(0.74, PARTITION_SHARE, 1));
    }
}
