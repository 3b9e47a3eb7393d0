//! A rate limit for log messages.

use std::time::Duration;

use tokio::time::Instant;

/// Allows a log message once a minute.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Option<Instant>);

impl LogLimit {
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        const MIN_INTERVAL: Duration = Duration::from_secs(60);
        let is_allowed = self.0.is_none_or(|last| now > last + MIN_INTERVAL);
        if is_allowed {
            self.0 = Some(now);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_minute_is_allowed() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let allowed = [0, 1, 60, 61, 62, 121, 122]
            .map(|seconds| limit.allow(start + Duration::from_secs(seconds)));
        assert_eq!(allowed, [true, false, false, true, false, false, true]);
    }
}
