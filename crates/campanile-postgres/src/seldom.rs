//! What would fill a log if it were told each time.

use std::time::Duration;

use tokio::time::Instant;

/// Lets something be told once a minute.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Option<Instant>);

impl Seldom {
    /// Whether it is to be told again.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        const PAUSE: Duration = Duration::from_secs(60);
        let is_due = self.0.is_none_or(|told| now > told + PAUSE);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}
