//! Forwards librdkafka's log to `tracing`, and limits how often the same event is logged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::config::RDKafkaLogLevel;

/// How often the same event is logged.
const MIN_INTERVAL: Duration = Duration::from_secs(60);

/// The number of different events that are limited at a time. If there are more, the oldest is
/// forgotten, and logged at once when it occurs again.
const MAX_EVENTS: usize = 64;

/// Allows each event once a minute: at once when it first occurs, then with the number of times that
/// it was suppressed. Clones share one limit, such as a client and its successor.
#[derive(Clone, Debug)]
pub(crate) struct LogLimit {
    clock: Clock,
    events: Arc<Mutex<HashMap<Box<str>, LimitedEvent>>>,
}

#[derive(Debug)]
struct LimitedEvent {
    logged_at: Duration,
    suppressed: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { clock: Clock::boot(), events: Arc::default() }
    }
}

impl LogLimit {
    /// Decides whether this event may be logged now, and if so, counts how often it was suppressed
    /// since it was logged last.
    pub(crate) fn allow(&self, event: &str) -> Option<u64> {
        let now = self.clock.now();
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = events.get_mut(event) {
            if now < of.logged_at + MIN_INTERVAL {
                of.suppressed += 1;
                return None;
            }
            of.logged_at = now;
            return Some(std::mem::take(&mut of.suppressed));
        }
        if events.len() >= MAX_EVENTS {
            let oldest = events.iter().min_by_key(|(_, of)| of.logged_at);
            let oldest = oldest.map(|(event, _)| event.clone());
            oldest.map(|event| events.remove(&event));
        }
        events.insert(event.into(), LimitedEvent { logged_at: now, suppressed: 0 });
        Some(0)
    }

    /// As [`allow`](Self::allow), for a text of librdkafka. Its parentheses contain times and counts,
    /// which differ each time.
    pub(crate) fn allow_text(&self, text: &str) -> Option<u64> {
        self.allow(text.split_once(" (").map_or(text, |(before, _)| before))
    }
}

/// Forwards a line of librdkafka's log. Lines for debugging are not limited.
pub(crate) fn log(limit: &LogLimit, level: RDKafkaLogLevel, facility: &str, message: &str) {
    if matches!(level, RDKafkaLogLevel::Debug) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    }
    let Some(suppressed) = limit.allow_text(message) else {
        return;
    };
    match level {
        RDKafkaLogLevel::Warning => {
            tracing::warn!(target: "librdkafka", facility, suppressed, "{message}");
        }
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", facility, suppressed, "{message}");
        }
        _ => tracing::error!(target: "librdkafka", facility, suppressed, "{message}"),
    }
}

pub(crate) fn statistics(statistics: &[u8]) {
    let statistics = String::from_utf8_lossy(statistics);
    tracing::info!(target: "librdkafka", facility = "STATS", "{statistics}");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Creates a limit, and its clock in seconds.
    fn limit() -> (LogLimit, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let now = seconds.clone();
        let clock = Clock::from_fn(move || Duration::from_secs(now.load(Ordering::Relaxed)));
        (LogLimit { clock, events: Arc::default() }, seconds)
    }

    #[test]
    fn event_is_allowed_at_once_then_once_a_minute() {
        let (limit, seconds) = limit();
        assert_eq!(limit.allow("down"), Some(0));
        assert_eq!([limit.allow("down"), limit.allow("down")], [None, None]);
        assert_eq!(limit.allow("refused"), Some(0), "another event");
        seconds.store(59, Ordering::Relaxed);
        assert_eq!(limit.allow("down"), None);
        seconds.store(60, Ordering::Relaxed);
        assert_eq!([limit.allow("down"), limit.allow("down")], [Some(3), None]);
    }

    #[test]
    fn librdkafka_texts_are_compared_without_times_and_counts() {
        let (limit, _) = limit();
        assert_eq!(limit.allow_text("b/1: refused (after 0ms in state CONNECT)"), Some(0));
        assert_eq!(limit.allow_text("b/1: refused (after 7ms in state CONNECT, 1 more)"), None);
        assert_eq!(limit.allow_text("b/2: refused (after 0ms in state CONNECT)"), Some(0));
    }

    #[test]
    fn number_of_limited_events_is_bounded() {
        let (limit, seconds) = limit();
        for n in 0..1000 {
            seconds.fetch_add(1, Ordering::Relaxed);
            assert_eq!(limit.allow(&n.to_string()), Some(0));
        }
        assert_eq!(limit.events.lock().unwrap().len(), MAX_EVENTS);
        assert_eq!(limit.allow("999"), None);
    }
}
