//! The vote of a cluster's nodes on its slots.

use super::slots::SlotMap;

/// The slot maps that nodes have reported, each with the number of nodes.
pub(super) struct Vote {
    /// How many nodes are more than half of them.
    majority: usize,
    reports: Vec<(SlotMap, usize)>,
}

impl Vote {
    /// Creates a vote of this many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self { majority: nodes / 2 + 1, reports: Vec::new() }
    }

    /// Adds the map that a node reports. Returns whether more than half of the nodes agree on it.
    pub(super) fn add(&mut self, map: SlotMap) -> bool {
        match self.reports.iter_mut().find(|(other, _)| *other == map) {
            Some((_, count)) => {
                *count += 1;
                *count >= self.majority
            }
            None => {
                self.reports.push((map, 1));
                self.majority == 1
            }
        }
    }

    /// Returns the map that most nodes have reported. `None` if none has reported any.
    pub(super) fn into_winner(self) -> Option<SlotMap> {
        self.reports.into_iter().max_by_key(|(_, count)| *count).map(|(map, _)| map)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    /// A cluster with one master.
    fn map(master: &str) -> SlotMap {
        let host = Value::BulkString(master.into());
        let master = Value::Array(vec![host, Value::Int(7000)]);
        let range = Value::Array(vec![Value::Int(0), Value::Int(16_383), master]);
        SlotMap::parse(&Value::Array(vec![range]), "").unwrap()
    }

    /// Adds these maps. Returns whether each ended the vote, and the winner.
    fn vote(nodes: usize, reported: &[&str]) -> (Vec<bool>, Option<SlotMap>) {
        let mut vote = Vote::new(nodes);
        let ended = reported.iter().map(|master| vote.add(map(master))).collect();
        (ended, vote.into_winner())
    }

    #[test]
    fn vote_ends_once_more_than_half_agree() {
        let (a, b) = ("a", "b");
        assert_eq!(vote(1, &[a]), (vec![true], Some(map(a))));
        assert_eq!(vote(2, &[a, a]), (vec![false, true], Some(map(a))));
        assert_eq!(vote(3, &[b, a, a]), (vec![false, false, true], Some(map(a))));
        assert_eq!(vote(4, &[a, a, b, a]), (vec![false, false, false, true], Some(map(a))));
    }

    #[test]
    fn map_that_most_report_wins_without_a_majority() {
        assert_eq!(vote(5, &["a", "b", "b"]).1, Some(map("b")));
        assert_eq!(vote(5, &["b", "b", "a"]).1, Some(map("b")));
        assert_eq!(vote(5, &[]), (vec![], None));
    }
}
