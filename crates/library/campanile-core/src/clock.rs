//! The monotonic clock of the clients, which keeps running while the machine is suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A monotonic clock, read as the time since an arbitrary origin.
///
/// LockHandle deadlines are measured with it. On Linux it is `CLOCK_BOOTTIME`: `CLOCK_MONOTONIC`, and
/// therefore `std::time::Instant`, stops while the machine is suspended, but the store's clock does
/// not. Tests with paused time provide their own clock with [`Clock::from_fn`].
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Boot,
    Custom(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Clock {
    /// Returns the machine's clock.
    pub const fn boot() -> Self {
        Self(Source::Boot)
    }

    /// Creates a clock from a function. The clock must never go backwards.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Source::Custom(Arc::new(now)))
    }

    /// Reads the time since the origin.
    pub fn now(&self) -> Duration {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Source::Boot => boot_time(),
            #[cfg(not(target_os = "linux"))]
            Source::Boot => monotonic_time(),
            Source::Custom(now) => now(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::Boot => "Clock::boot",
            Source::Custom(_) => "Clock::from_fn",
        })
    }
}

#[cfg(target_os = "linux")]
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // The clock guarantees that neither value is negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(target_os = "linux"))]
fn monotonic_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "the best clock available on other platforms")]
    let now = Instant::now();
    now.duration_since(*ORIGIN.get_or_init(|| now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_clock_advances_while_thread_sleeps() {
        let before = Clock::boot().now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(Clock::boot().now() >= before + Duration::from_millis(2));
    }
}
