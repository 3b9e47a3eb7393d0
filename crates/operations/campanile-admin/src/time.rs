//! Points in time and periods, as operators read them.

use std::fmt;
use std::time::{Duration, SystemTime};

/// The last second that RFC 3339 can express. Stored times may be later.
const MAX_UNIX_SECONDS: u64 = 253_402_300_799;

/// The time of this machine.
#[expect(clippy::disallowed_methods, reason = "for the operator, and no lock depends on it")]
pub(crate) fn system_time() -> SystemTime {
    SystemTime::now()
}

/// Formats a time by RFC 3339, in UTC.
pub(crate) struct Utc(pub(crate) SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = SystemTime::UNIX_EPOCH + Duration::from_secs(MAX_UNIX_SECONDS);
        let time = self.0.clamp(SystemTime::UNIX_EPOCH, max);
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

/// Formats a time, and how far it is from `now`.
pub(crate) struct At {
    pub(crate) time: SystemTime,
    pub(crate) now: SystemTime,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let utc = Utc(self.time);
        match self.time.duration_since(self.now) {
            Ok(left) => write!(f, "{utc} (in {})", Period(left)),
            Err(passed) => write!(f, "{utc} ({} ago)", Period(passed.duration())),
        }
    }
}

/// Formats a period by its two largest units.
pub(crate) struct Period(pub(crate) Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        if seconds == 0 {
            return write!(f, "{} ms", self.0.as_millis());
        }
        let parts = [(86_400, u64::MAX, "d"), (3_600, 24, "h"), (60, 60, "min"), (1, 60, "s")]
            .map(|(unit, count, name)| ((seconds / unit).checked_rem(count).unwrap_or(0), name));
        let first = parts.iter().position(|(value, _)| *value > 0).unwrap_or(0);
        let (value, name) = parts[first];
        write!(f, "{value} {name}")?;
        match parts.get(first + 1) {
            Some((value, name)) if *value > 0 => write!(f, " {value} {name}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_out_of_range_is_clamped() {
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(MAX_UNIX_SECONDS * 2);
        assert_eq!(Utc(far).to_string(), "9999-12-31T23:59:59.000Z");
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Utc(early).to_string(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn period_has_two_units_at_most() {
        let text = |seconds| Period(Duration::from_secs(seconds)).to_string();
        assert_eq!([text(59), text(60), text(90)], ["59 s", "1 min", "1 min 30 s"]);
        assert_eq!([text(3_600), text(90_061), text(864_000)], ["1 h", "1 d 1 h", "10 d"]);
        assert_eq!(Period(Duration::from_micros(1_500)).to_string(), "1 ms");
    }

    #[test]
    fn distance_is_to_the_given_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let at = |seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            At { time, now }.to_string()
        };
        assert_eq!(at(130), "1970-01-01T00:02:10.000Z (in 30 s)");
        assert_eq!(at(40), "1970-01-01T00:00:40.000Z (1 min ago)");
    }
}
