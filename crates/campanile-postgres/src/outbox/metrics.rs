//! The metrics of the outbox.

use campanile_core::telemetry::{Gauge, instruments};

use super::session::Backlog;

/// The gauges of the outbox. Only the relay that leads sets them.
pub(super) struct OutboxMetrics {
    messages: Gauge,
    oldest_age: Gauge,
}

impl OutboxMetrics {
    pub(super) fn new() -> Self {
        Self {
            messages: Gauge::new(&instruments::OUTBOX_MESSAGES, &[]),
            oldest_age: Gauge::new(&instruments::OUTBOX_OLDEST_AGE, &[]),
        }
    }

    pub(super) fn set(&self, backlog: Backlog) {
        self.messages.set(backlog.messages as f64);
        self.oldest_age.set(backlog.oldest_age);
    }
}

impl Drop for OutboxMetrics {
    /// Leaves the gauges to the next leader.
    fn drop(&mut self) {
        self.set(Backlog::default());
    }
}
