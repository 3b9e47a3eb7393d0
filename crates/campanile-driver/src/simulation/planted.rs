//! Bugs that tests plant in the driver, to verify that the simulation finds them.

use std::cell::Cell;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The watermark passes an unfinished record.
    WatermarkPassesUnfinished,
    /// A retry that is due is not started.
    LostWake,
    /// After a retry, a queue's next record is started before the one that failed.
    OrderAfterRetry,
    /// Partitions are released before they are drained.
    RevokeNotDrained,
    /// Finished records stay counted as used budget.
    BudgetNotReturned,
}

impl Bug {
    pub(crate) const ALL: [Self; 5] = [
        Self::WatermarkPassesUnfinished,
        Self::LostWake,
        Self::OrderAfterRetry,
        Self::RevokeNotDrained,
        Self::BudgetNotReturned,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
