//! Detection of stalled partitions: their offset does not advance.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::scheduler::timers::TimerId;
use crate::source::AssignmentId;

/// Tracks the oldest unfinished record of each partition, which holds back the partition's offset.
/// Sampled once a second, so that tracking adds no cost per record.
pub(crate) struct Stalls {
    /// How long a partition must be stalled before the stall is logged.
    after: Duration,
    tracked: HashMap<AssignmentId, Tracked>,
    round: u64,
    resolved: Vec<Resolved>,
}

/// The oldest unfinished record of a partition.
struct Tracked {
    /// The last round in which the record was seen.
    last_round: u64,
    offset: i64,
    since: Instant,
    activity: (Activity, Instant),
    /// The duration at which the stall is logged again, once it was logged.
    next_log: Option<Duration>,
}

/// What a record is doing. Each attempt and each wait is a distinct value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    Running {
        failures: u32,
    },
    /// Its handler has succeeded, and the store has not recorded that yet.
    Recording,
    Waiting(TimerId),
    Due,
}

/// How long a record has been in its present state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StallAge {
    /// How long it has been its partition's oldest unfinished record.
    pub(crate) oldest: Duration,
    /// How long it has been doing what it is doing now.
    pub(crate) activity: Duration,
}

/// A logged stall that is over, and its duration.
pub(crate) type Resolved = (AssignmentId, Duration);

impl Stalls {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, tracked: HashMap::new(), round: 0, resolved: Vec::new() }
    }

    /// Tracks the oldest unfinished record of a partition, as seen in this round. Returns how long
    /// it has been in its present state.
    pub(crate) fn observe(
        &mut self,
        assignment: AssignmentId,
        offset: i64,
        activity: Activity,
        now: Instant,
    ) -> StallAge {
        let new = || Tracked {
            last_round: 0,
            offset,
            since: now,
            activity: (activity, now),
            next_log: None,
        };
        let tracked = self.tracked.entry(assignment).or_insert_with(new);
        if tracked.offset != offset {
            if tracked.next_log.is_some() {
                self.resolved.push((assignment, now - tracked.since));
            }
            *tracked = new();
        }
        if tracked.activity.0 != activity {
            tracked.activity = (activity, now);
        }
        tracked.last_round = self.round;
        StallAge { oldest: now - tracked.since, activity: now - tracked.activity.1 }
    }

    /// Decides whether to log the stall: once it has lasted long enough, and again each time its
    /// duration has doubled.
    pub(crate) fn is_due(&self, assignment: AssignmentId, age: StallAge) -> bool {
        let tracked = self.tracked.get(&assignment);
        tracked.is_some_and(|tracked| age.oldest >= tracked.next_log.unwrap_or(self.after))
    }

    /// Notes that the stall was logged.
    pub(crate) fn mark_logged(&mut self, assignment: AssignmentId, age: StallAge) {
        if let Some(tracked) = self.tracked.get_mut(&assignment) {
            tracked.next_log = Some(age.oldest.saturating_mul(2));
        }
    }

    /// Ends a round. Partitions that were not seen in it have no unfinished record. Returns the
    /// stalls that are over, and since when each partition's oldest record has been the oldest.
    pub(crate) fn finish_round(
        &mut self,
        now: Instant,
    ) -> (Vec<Resolved>, HashMap<AssignmentId, Instant>) {
        let mut resolved = std::mem::take(&mut self.resolved);
        self.tracked.retain(|assignment, tracked| {
            let seen = tracked.last_round == self.round;
            if !seen && tracked.next_log.is_some() {
                resolved.push((*assignment, now - tracked.since));
            }
            seen
        });
        self.round += 1;
        (
            resolved,
            self.tracked.iter().map(|(assignment, tracked)| (*assignment, tracked.since)).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSIGNMENT: AssignmentId = AssignmentId(7);
    const MINUTE: Duration = Duration::from_secs(60);
    const RUNNING: Activity = Activity::Running { failures: 0 };

    /// Samples a partition once, and checks whether the stall is logged.
    fn sample(
        stalls: &mut Stalls,
        offset: i64,
        activity: Activity,
        now: Instant,
    ) -> (bool, StallAge) {
        let age = stalls.observe(ASSIGNMENT, offset, activity, now);
        let due = stalls.is_due(ASSIGNMENT, age);
        if due {
            stalls.mark_logged(ASSIGNMENT, age);
        }
        (due, age)
    }

    #[test]
    fn stall_is_logged_after_the_limit_and_at_each_doubling() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        let mut logged = Vec::new();
        for minute in 0..9 {
            if sample(&mut stalls, 5, RUNNING, start + MINUTE * minute).0 {
                logged.push(minute);
            }
            assert_eq!(stalls.finish_round(start).0, []);
        }
        assert_eq!(logged, [1, 2, 4, 8]);
        let now = start + MINUTE * 9;
        assert!(!sample(&mut stalls, 6, RUNNING, now).0);
        assert_eq!(stalls.finish_round(now).0, [(ASSIGNMENT, MINUTE * 9)]);
        assert_eq!(
            stalls.finish_round(now),
            (Vec::new(), HashMap::new()),
            "the stall was not logged"
        );
    }

    #[test]
    fn advancing_partition_is_never_logged() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        for minute in 0..5 {
            let now = start + MINUTE * minute;
            assert!(!sample(&mut stalls, i64::from(minute), RUNNING, now).0);
            assert_eq!(stalls.finish_round(now).1, HashMap::from([(ASSIGNMENT, now)]));
        }
        assert_eq!(stalls.finish_round(start).1, HashMap::new());
        let (logged, age) = sample(&mut stalls, 4, RUNNING, start + MINUTE * 9);
        assert_eq!((logged, age.oldest), (false, Duration::ZERO));
    }

    #[test]
    fn stall_ends_with_its_last_record() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        for minute in 0..2 {
            sample(&mut stalls, 5, RUNNING, start + MINUTE * minute);
            stalls.finish_round(start);
        }
        assert_eq!(stalls.finish_round(start + MINUTE * 3).0, [(ASSIGNMENT, MINUTE * 3)]);
    }

    #[test]
    fn another_attempt_does_not_move_the_offset() {
        let (mut stalls, start) = (Stalls::new(MINUTE), Instant::now());
        sample(&mut stalls, 5, RUNNING, start);
        let now = start + MINUTE / 2;
        let (_, age) = sample(&mut stalls, 5, Activity::Running { failures: 1 }, now);
        assert_eq!(age, StallAge { oldest: MINUTE / 2, activity: Duration::ZERO });
    }
}
