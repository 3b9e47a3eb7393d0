//! The metrics of the outbox.

use campanile_core::telemetry::{Gauge, instruments};

use super::session::Backlog;

/// The gauges of the outbox. All are 0 unless the relay leads.
pub(super) struct OutboxMetrics {
    leader: Gauge,
    messages: Gauge,
    oldest_age: Gauge,
}

impl OutboxMetrics {
    pub(super) fn new() -> Self {
        Self {
            leader: Gauge::new(&instruments::OUTBOX_LEADER, &[]),
            messages: Gauge::new(&instruments::OUTBOX_MESSAGES, &[]),
            oldest_age: Gauge::new(&instruments::OUTBOX_OLDEST_AGE, &[]),
        }
    }

    /// The relay leads until the guard is dropped.
    pub(super) fn lead(&self) -> Leading<'_> {
        self.leader.set(1.0);
        Leading(self)
    }
}

/// The gauges of a relay that leads.
pub(super) struct Leading<'a>(&'a OutboxMetrics);

impl Leading<'_> {
    pub(super) fn set(&self, backlog: Backlog) {
        self.0.messages.set(backlog.messages as f64);
        self.0.oldest_age.set(backlog.oldest_age);
    }
}

impl Drop for Leading<'_> {
    /// Leaves the gauges to the next leader.
    fn drop(&mut self) {
        self.set(Backlog::default());
        self.0.leader.set(0.0);
    }
}
