//! The vote of several servers on what they report, because one that was cut off from the others
//! reports what is outdated.

use std::cmp::Reverse;

/// What servers have reported, each with the number of servers.
pub(super) struct Vote<T> {
    /// How many servers are more than half of them.
    majority: usize,
    reports: Vec<(T, usize)>,
}

impl<T: PartialEq> Vote<T> {
    /// Creates a vote of this many servers.
    pub(super) fn new(servers: usize) -> Self {
        Self { majority: servers / 2 + 1, reports: Vec::new() }
    }

    /// Adds what a server reports. Returns whether more than half of the servers agree on it.
    pub(super) fn add(&mut self, report: T) -> bool {
        let known = self.reports.iter().position(|(other, _)| *other == report);
        let place = known.unwrap_or(self.reports.len());
        if known.is_none() {
            self.reports.push((report, 0));
        }
        let (_, count) = &mut self.reports[place];
        *count += 1;
        *count >= self.majority
    }

    /// Returns what more than half of the servers agree on.
    pub(super) fn into_majority(self) -> Option<T> {
        let majority = self.majority;
        let mut reports = self.reports.into_iter();
        reports.find(|(_, count)| *count >= majority).map(|(report, _)| report)
    }

    /// Returns all reports; that of the most servers is the first.
    pub(super) fn into_reports(mut self) -> impl Iterator<Item = T> {
        self.reports.sort_by_key(|(_, count)| Reverse(*count));
        self.reports.into_iter().map(|(report, _)| report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds these reports. Returns whether more than half agreed after each, and on what at the end.
    fn vote(servers: usize, reports: &str) -> (Vec<bool>, Option<char>) {
        let mut vote = Vote::new(servers);
        let agreed = reports.chars().map(|report| vote.add(report)).collect();
        (agreed, vote.into_majority())
    }

    #[test]
    fn majority_is_more_than_half_of_all_servers() {
        assert_eq!(vote(1, "a"), (vec![true], Some('a')));
        assert_eq!(vote(2, "aa"), (vec![false, true], Some('a')));
        assert_eq!(vote(3, "baa"), (vec![false, false, true], Some('a')));
        assert_eq!(vote(4, "aab"), (vec![false, false, false], None));
        assert_eq!(vote(4, "aaba"), (vec![false, false, false, true], Some('a')));
        assert_eq!(vote(5, ""), (vec![], None));
    }

    #[test]
    fn report_of_most_servers_is_first() {
        for (reports, expected) in [("abb", "ba"), ("bba", "ba"), ("abccbc", "cba"), ("", "")] {
            let mut vote = Vote::new(9);
            for report in reports.chars() {
                vote.add(report);
            }
            assert_eq!(vote.into_reports().collect::<String>(), expected);
        }
    }
}
