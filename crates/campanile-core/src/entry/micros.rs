//! Points in time as an entry stores them.

use std::time::{Duration, SystemTime};

/// Microseconds since 1970, for Redis has no finer clock. Nothing here overflows or panics: what is
/// before 1970 is 1970, and what is too far away is as far as possible.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Micros(pub(crate) u64);

impl Micros {
    const PER_SECOND: u64 = 1_000_000;

    /// About the year 20 238. Every platform's clock goes further, some not as far as `u64`.
    const LATEST_SHOWN: u64 = 1 << 59;

    pub(crate) const fn from_seconds(seconds: u32) -> Self {
        Self(seconds as u64 * Self::PER_SECOND)
    }

    /// As an entry's `created` has it; its four bytes last until 2106.
    pub(crate) const fn whole_seconds(self) -> u32 {
        let seconds = self.0 / Self::PER_SECOND;
        if seconds > u32::MAX as u64 { u32::MAX } else { seconds as u32 }
    }

    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole(duration)))
    }

    /// How long until `later`; zero if that has passed.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }

    pub(crate) fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0.min(Self::LATEST_SHOWN))
    }
}

impl From<SystemTime> for Micros {
    /// Truncates to whole microseconds.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, whole))
    }
}

fn whole(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
