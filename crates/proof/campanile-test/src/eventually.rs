use std::time::{Duration, Instant};

/// How long the thread sleeps between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Calls `check` until it finds a value, and gives up with `None` once `within` has passed.
///
/// Calls `check` at least once, and once more at the end of `within`. Blocks the thread.
///
/// ```
/// use campanile_test::eventually;
/// use std::time::Duration;
///
/// let mut calls = 0;
/// let found = eventually(Duration::from_secs(1), || {
///     calls += 1;
///     (calls == 3).then_some("found")
/// });
/// assert_eq!(found, Some("found"));
/// ```
pub fn eventually<T>(within: Duration, mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + within;
    loop {
        let is_last_check = now() >= deadline;
        if let Some(value) = check() {
            return Some(value);
        }
        if is_last_check {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Reads the current instant, for the time limits of the test kit.
#[expect(
    clippy::disallowed_methods,
    reason = "time limits of tests and the proxy's delay; no lock depends on them"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmet_condition_returns_none_at_deadline() {
        let start = now();
        let found = eventually(Duration::from_millis(30), || None::<()>);
        assert_eq!(found, None);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn zero_timeout_checks_once() {
        assert_eq!(eventually(Duration::ZERO, || Some(1)), Some(1));
    }
}
