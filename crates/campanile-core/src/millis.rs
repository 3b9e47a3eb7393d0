//! Times as Kafka counts them: milliseconds since 1970.

use std::time::{Duration, SystemTime};

/// The time of so many; `None` if the platform cannot tell it. A producer can send any.
pub fn time(millis: i64) -> Option<SystemTime> {
    let distance = Duration::from_millis(millis.unsigned_abs());
    if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}

/// How many a time is. One that is beyond what Kafka can count is the last that it can.
pub fn of(time: SystemTime) -> i64 {
    let number = |distance: Duration| i64::try_from(distance.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => number(after),
        Err(before) => -number(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_a_time_or_none_and_a_time_gives_its_number_back() {
        for millis in [0, 1, -1, 1500, -1500, 1_700_000_000_000] {
            assert_eq!(of(time(millis).unwrap()), millis);
        }
        // It depends on the platform whether these can be told; neither panics.
        for millis in [i64::MAX, i64::MIN] {
            time(millis).map(of);
        }
    }
}
