//! What the dispatcher sets and the consumer's thread looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::budget::{Amount, Stock};
use crate::watch::Watch;

/// Below this part of the budget the thread reads on.
pub(super) const LOW_WATER: f64 = 0.75;

/// What the thread is to do. It only ever goes on to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Reading = 0,
    /// Reads no more, and commits what is being finished.
    Draining = 1,
    /// Commits, leaves the group and ends.
    Closing = 2,
}

pub(super) struct Control {
    budget: Amount,
    pub(super) total: Arc<Stock>,
    stage: AtomicU8,
    /// The thread waits for room in the budget.
    waiting: AtomicBool,
    /// The dispatcher waits for room for outputs.
    held_back: AtomicBool,
    pub(super) watch: Arc<Watch>,
}

impl Control {
    pub(super) fn new(budget: Amount) -> Self {
        Self {
            budget,
            total: Arc::default(),
            stage: AtomicU8::new(Stage::Reading as u8),
            waiting: AtomicBool::new(false),
            held_back: AtomicBool::new(false),
            watch: Arc::default(),
        }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Reading,
            1 => Stage::Draining,
            _ => Stage::Closing,
        }
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    pub(super) fn received(&self, amount: Amount) {
        self.total.receive(amount);
    }

    /// Whether the thread should be woken.
    pub(super) fn finished(&self, amount: Amount) -> bool {
        self.total.finish(amount);
        self.waiting.load(Ordering::SeqCst) && self.level() < LOW_WATER
    }

    /// How full the budget is.
    pub(super) fn level(&self) -> f64 {
        self.total.held().level(self.budget)
    }

    /// By the dispatcher: whether outputs alone fill the budget. If so, it is to be told when there is
    /// room again.
    pub(super) fn is_full_of_outputs(&self) -> bool {
        let full = self.total.outgoing().level(self.budget) >= 1.0;
        if full {
            self.held_back.store(true, Ordering::SeqCst);
        }
        full
    }

    /// By the consumer's thread: whether the dispatcher is to be told now. Asked in each round, so that
    /// none is missed.
    pub(super) fn take_room(&self) -> bool {
        self.held_back.load(Ordering::SeqCst)
            && self.total.outgoing().level(self.budget) < LOW_WATER
            && self.held_back.swap(false, Ordering::SeqCst)
    }

    /// What may still be read; `None` when the budget is used up.
    pub(super) fn room(&self) -> Option<Amount> {
        self.total.held().left_of(self.budget)
    }

    pub(super) fn budget(&self) -> Amount {
        self.budget
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::SeqCst);
    }
}
