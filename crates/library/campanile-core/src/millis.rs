//! Times as Kafka represents them: milliseconds since 1970.

use std::time::{Duration, SystemTime};

/// Converts milliseconds to a time, if the platform can represent it: a producer can send any
/// value.
pub fn time(millis: i64) -> Option<SystemTime> {
    let distance = Duration::from_millis(millis.unsigned_abs());
    if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}

/// Converts a time to milliseconds. Saturates at the range of Kafka's timestamps.
pub fn of(time: SystemTime) -> i64 {
    let to_millis = |distance: Duration| i64::try_from(distance.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => to_millis(after),
        Err(before) => -to_millis(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn millis_round_trip_and_extremes_do_not_panic() {
        for millis in [0, 1, -1, 1500, -1500, 1_700_000_000_000] {
            assert_eq!(of(time(millis).unwrap()), millis);
        }
        // Whether these values are representable depends on the platform; neither panics.
        for millis in [i64::MAX, i64::MIN] {
            time(millis).map(of);
        }
    }
}
