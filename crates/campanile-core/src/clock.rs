//! The one clock of the clients: it goes on while the machine is suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A monotonic clock, read as the time since some origin.
///
/// A lock's deadline is taken from it. On Linux it is `CLOCK_BOOTTIME`, for `CLOCK_MONOTONIC`, and
/// so `std::time::Instant`, stands still while the machine is suspended, but the store's does not.
/// Tests with paused time bring their own by [`Clock::from_fn`].
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Boot,
    Own(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Clock {
    /// The machine's.
    pub const fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock of one's own; it must never go backwards.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Source::Own(Arc::new(now)))
    }

    /// The time since the origin.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::Boot => boot_time(),
            Source::Own(now) => now(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::Boot => "Clock::boot",
            Source::Own(_) => "Clock::from_fn",
        })
    }
}

#[cfg(target_os = "linux")]
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither is negative by the contract of the clock.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(target_os = "linux"))]
fn boot_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "the best there is elsewhere")]
    let now = Instant::now();
    now.duration_since(*ORIGIN.get_or_init(|| now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_clock_goes_on_while_a_thread_sleeps() {
        let before = Clock::boot().now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(Clock::boot().now() >= before + Duration::from_millis(2));
    }
}
