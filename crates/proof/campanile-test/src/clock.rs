//! A clock shared by the keeper and the store of a test.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::Clock;
use tokio::time::Instant;

/// A clock that a test controls: it follows tokio's time, paused or not, and can be advanced.
///
/// Give [`keeper_clock`](Self::keeper_clock) to the keeper and [`store_clock`](Self::store_clock) to the store,
/// so that both use the time that the test controls. The clock starts at the same time in every
/// run. Read it only on the runtime on which it was created.
///
/// ```
/// use campanile_idempotency::{LockKeeper, MemoryStore};
/// use campanile_test::TestClock;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let clock = TestClock::new();
/// let store = MemoryStore::with_clock(clock.store_clock());
/// let (keeper, task) = LockKeeper::pair(store, clock.keeper_clock());
/// tokio::spawn(task);
///
/// let before = clock.now();
/// tokio::time::sleep(Duration::from_secs(3600)).await; // paused, so it takes no time
/// assert_eq!(clock.now(), before + Duration::from_secs(3600));
/// # drop(keeper);
/// # }
/// ```
///
/// [`advance`](Self::advance) advances this clock but not tokio's timers. This is how time
/// appears to a process after it, or its machine, was suspended.
#[derive(Clone)]
pub struct TestClock(Arc<Inner>);

struct Inner {
    origin: Instant,
    /// Nanoseconds by which the clock was advanced.
    offset_nanos: AtomicU64,
}

/// The time at which the clock starts, in seconds since 1970.
const START_UNIX_SECS: u64 = 1_800_000_000;

impl TestClock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self(Arc::new(Inner { origin: Instant::now(), offset_nanos: AtomicU64::new(0) }))
    }

    /// Converts this clock to the form that [`LockKeeper::pair`] takes: the time since this clock
    /// was created.
    ///
    /// [`LockKeeper::pair`]: campanile_idempotency::LockKeeper::pair
    pub fn keeper_clock(&self) -> Clock {
        let clock = self.clone();
        Clock::from_fn(move || clock.elapsed())
    }

    /// Converts this clock to the form that [`MemoryStore::with_clock`] takes.
    ///
    /// [`MemoryStore::with_clock`]: campanile_idempotency::MemoryStore::with_clock
    pub fn store_clock(&self) -> impl Fn() -> SystemTime + Send + Sync + 'static {
        let clock = self.clone();
        move || clock.now()
    }

    /// Reads the time since the clock was created.
    pub fn elapsed(&self) -> Duration {
        self.0.origin.elapsed() + Duration::from_nanos(self.0.offset_nanos.load(Ordering::Acquire))
    }

    /// Reads the clock's current time.
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(START_UNIX_SECS) + self.elapsed()
    }

    /// Advances the clock and leaves tokio's time unchanged, so that no timer fires.
    ///
    /// # Panics
    /// Panics if the clock would be more than 500 years ahead.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).expect("less than 500 years");
        let before = self.0.offset_nanos.fetch_add(nanos, Ordering::AcqRel);
        assert!(before.checked_add(nanos).is_some(), "less than 500 years");
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestClock({:?})", self.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_follows_paused_time_and_advance() {
        let clock = TestClock::new();
        let (keeper, store) = (clock.keeper_clock(), clock.store_clock());
        let start = store();
        assert_eq!(keeper.now(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(7)).await;
        clock.advance(Duration::from_secs(3));
        assert_eq!(keeper.now(), Duration::from_secs(10));
        assert_eq!(store(), start + Duration::from_secs(10));
    }
}
