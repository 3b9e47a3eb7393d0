//! Points in time as an entry stores them.

use std::time::{Duration, SystemTime};

/// Microseconds since 1970, which is the resolution of Redis's clock.
///
/// No operation overflows or panics: times before 1970 become 1970, and times that are too far in
/// the future saturate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Micros(pub(crate) u64);

impl Micros {
    const PER_SECOND: u64 = 1_000_000;

    /// About the year 20 238. The clock of every platform can represent it; some cannot represent
    /// all of `u64`.
    const MAX_SYSTEM_TIME_MICROS: u64 = 1 << 59;

    pub(crate) const fn from_seconds(seconds: u32) -> Self {
        Self(seconds as u64 * Self::PER_SECOND)
    }

    /// Rounds down to whole seconds, and keeps their low 32 bits, as stored in an entry's `created`.
    /// They last until 2106.
    pub(crate) const fn whole_seconds(self) -> u32 {
        (self.0 / Self::PER_SECOND) as u32
    }

    pub(crate) fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_micros(duration)))
    }

    /// Computes the time until `later`, or zero if it has passed.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }

    pub(crate) fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0.min(Self::MAX_SYSTEM_TIME_MICROS))
    }
}

impl From<SystemTime> for Micros {
    /// Truncates to whole microseconds.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, whole_micros))
    }
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
