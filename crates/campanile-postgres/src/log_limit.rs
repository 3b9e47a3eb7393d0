//! A rate limit for log messages.

use std::time::Duration;

use tokio::time::Instant;

/// Allows a log message once a minute.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Option<Instant>);

impl Seldom {
    /// Whether the message may be logged again.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        const PAUSE: Duration = Duration::from_secs(60);
        let is_due = self.0.is_none_or(|told| now > told + PAUSE);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}
