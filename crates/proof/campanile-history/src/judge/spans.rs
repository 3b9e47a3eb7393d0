//! Intervals of time.

/// A set of closed intervals, in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    /// Disjoint and sorted, each with the total length of those before it.
    spans: Vec<(u64, u64, u64)>,
}

impl FromIterator<(u64, u64)> for Spans {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(intervals: I) -> Self {
        let mut intervals: Vec<_> = intervals.into_iter().collect();
        intervals.sort_unstable();
        let mut spans: Vec<(u64, u64, u64)> = Vec::new();
        for (from, until) in intervals {
            match spans.last_mut() {
                Some((_, last, _)) if from <= *last => *last = until.max(*last),
                last => {
                    let before = last.map_or(0, |(from, until, before)| *before + (*until - *from));
                    spans.push((from, until, before));
                }
            }
        }
        Self { spans }
    }
}

impl Spans {
    /// Checks whether a part of the interval, or an end of it, is in the set.
    pub(super) fn touches(&self, from: u64, until: u64) -> bool {
        let next = self.spans.partition_point(|span| span.1 < from);
        self.spans.get(next).is_some_and(|span| span.0 <= until)
    }

    /// Computes how much of the interval is in the set.
    pub(super) fn covered(&self, from: u64, until: u64) -> u64 {
        self.covered_before(until).saturating_sub(self.covered_before(from))
    }

    fn covered_before(&self, at: u64) -> u64 {
        let next = self.spans.partition_point(|span| span.0 < at);
        let last = next.checked_sub(1).map(|last| self.spans[last]);
        last.map_or(0, |(from, until, before)| before + (until.min(at) - from))
    }
}

/// Weights of intervals that may overlap.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// The starts and the ends of the intervals, sorted, each with the total weight up to it.
    starts: Vec<(u64, u128)>,
    ends: Vec<(u64, u128)>,
}

impl FromIterator<(u64, u64, u128)> for Weights {
    /// Collects start, end and weight of each interval.
    fn from_iter<I: IntoIterator<Item = (u64, u64, u128)>>(intervals: I) -> Self {
        let (starts, ends) = intervals
            .into_iter()
            .map(|(from, until, weight)| ((from, weight), (until, weight)))
            .unzip();
        Self { starts: accumulate(starts), ends: accumulate(ends) }
    }
}

impl Weights {
    /// Computes the total weight of the intervals that touch this one.
    pub(super) fn touching(&self, from: u64, until: u64) -> u128 {
        let begun = self.starts.partition_point(|start| start.0 <= until);
        let over = self.ends.partition_point(|end| end.0 < from);
        let total = |sums: &[(u64, u128)], count: usize| {
            count.checked_sub(1).map_or(0, |last| sums[last].1)
        };
        total(&self.starts, begun) - total(&self.ends, over)
    }
}

/// Sorts points, and replaces the weight of each by the total weight up to it. No history is long
/// enough for a sum that is larger than its type.
fn accumulate(mut points: Vec<(u64, u128)>) -> Vec<(u64, u128)> {
    points.sort_unstable();
    let mut total = 0;
    for (_, weight) in &mut points {
        total += *weight;
        *weight = total;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_merge_and_measure_what_they_cover() {
        let spans: Spans = [(30, 40), (10, 20), (15, 25), (50, 50)].into_iter().collect();
        assert_eq!(spans.covered(0, 100), 25);
        assert_eq!(spans.covered(12, 35), 18);
        assert_eq!(spans.covered(25, 30), 0);
        for (from, until, touches) in
            [(0, 9, false), (0, 10, true), (26, 29, false), (41, 49, false), (45, 55, true)]
        {
            assert_eq!(spans.touches(from, until), touches, "{from} to {until}");
        }
    }

    #[test]
    fn weights_count_each_interval_that_touches() {
        let weights: Weights = [(10, 20, 1), (15, 30, 2), (40, 40, 4)].into_iter().collect();
        assert_eq!(weights.touching(0, 9), 0);
        assert_eq!(weights.touching(0, 12), 1);
        assert_eq!(weights.touching(21, 39), 2);
        assert_eq!(weights.touching(30, 50), 6);
    }
}
