//! Sorted times.

/// Finds the first of these times that is not before `from`.
pub(super) fn first_from(times: &[u64], from: u64) -> Option<u64> {
    times.get(times.partition_point(|at| *at < from)).copied()
}

/// Finds the first of these events whose time is in the closed interval.
pub(super) fn first_within(events: &[(u64, usize)], from: u64, until: u64) -> Option<usize> {
    let (at, event) = *events.get(events.partition_point(|(at, _)| *at < from))?;
    (at <= until).then_some(event)
}

/// Checks whether one of these times is in the closed interval.
pub(super) fn any_within(times: &[u64], from: u64, until: u64) -> bool {
    first_from(times, from).is_some_and(|at| at <= until)
}

/// Counts those of these times that are in the closed interval.
pub(super) fn count_within(times: &[u64], from: u64, until: u64) -> usize {
    let end = times.partition_point(|at| *at <= until);
    end.saturating_sub(times.partition_point(|at| *at < from))
}
