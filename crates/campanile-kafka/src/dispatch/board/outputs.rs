//! While what records give out fills the budget: only records whose end lets some of that go.

use super::Board;
use crate::dispatch::strand::StrandId;

impl Board {
    /// Outputs fill the budget. They wait for the oldest unfinished record of their partition, so from
    /// now on only those are dispatched.
    pub(in crate::dispatch) fn hold_back(&mut self) {
        self.held_back = true;
    }

    /// There is room for outputs again.
    pub(in crate::dispatch) fn go_on(&mut self) {
        self.held_back = false;
        let far = self.far();
        let near = self.lanes.values_mut().flat_map(|lane| lane.take_near(far));
        let near: Vec<StrandId> = near.collect();
        self.list_all(near);
    }

    /// How far ahead of its partition's oldest unfinished record one may be begun: below that.
    pub(super) fn far(&self) -> u64 {
        if self.held_back { 1 } else { self.policies.far }
    }
}
