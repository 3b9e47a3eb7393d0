//! The look that is taken about once a second, for those who ask from outside.

use super::Board;
use crate::vitals::Vitals;

impl Board {
    /// The intake asks whether the dispatcher works.
    pub(in crate::dispatch) fn look(&mut self) {
        self.vitals().answer(self.store.is_down());
    }

    pub(in crate::dispatch) fn vitals(&self) -> &Vitals {
        self.gate.vitals()
    }
}
