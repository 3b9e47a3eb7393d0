//! One clock for the keeper and the store of a test.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use campanile_core::Clock;
use tokio::time::Instant;

/// A clock that a test owns: it follows tokio's time, paused or not, and can be put forward.
///
/// Give [`clock`](Self::clock) to the keeper and [`store_clock`](Self::store_clock) to the store, so
/// that both live in the time that the test makes pass. It begins at the same time in every run. It
/// is to be read on the runtime on which it was made.
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
/// let (keeper, task) = LockKeeper::unspawned(store, clock.clock());
/// tokio::spawn(task);
///
/// let before = clock.now();
/// tokio::time::sleep(Duration::from_secs(3600)).await; // paused, so it takes no time
/// assert_eq!(clock.now(), before + Duration::from_secs(3600));
/// # drop(keeper);
/// # }
/// ```
///
/// [`put_forward`](Self::put_forward) moves this clock alone, and tokio's timers not: that is how a
/// process finds the world after it, or its machine, was suspended.
#[derive(Clone)]
pub struct TestClock(Arc<Inner>);

struct Inner {
    origin: Instant,
    /// Nanoseconds by which it was put forward.
    ahead: AtomicU64,
}

/// Where it begins, in seconds since 1970.
const START: u64 = 1_800_000_000;

impl TestClock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self(Arc::new(Inner { origin: Instant::now(), ahead: AtomicU64::new(0) }))
    }

    /// The same clock for a keeper, as the time since this one was made.
    pub fn clock(&self) -> Clock {
        let clock = self.clone();
        Clock::from_fn(move || clock.elapsed())
    }

    /// The same clock for a store, as [`MemoryStore::with_clock`] takes it.
    ///
    /// [`MemoryStore::with_clock`]: campanile_idempotency::MemoryStore::with_clock
    pub fn store_clock(&self) -> impl Fn() -> SystemTime + Send + Sync + 'static {
        let clock = self.clone();
        move || clock.now()
    }

    /// The time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.0.origin.elapsed() + Duration::from_nanos(self.0.ahead.load(Ordering::Acquire))
    }

    /// What it shows.
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(START) + self.elapsed()
    }

    /// Puts it forward, and leaves tokio's time as it is: no timer fires for it.
    ///
    /// # Panics
    /// If it would be more than 500 years ahead.
    pub fn put_forward(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).expect("less than 500 years");
        let before = self.0.ahead.fetch_add(nanos, Ordering::AcqRel);
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
    async fn it_follows_paused_time_and_can_be_put_forward() {
        let clock = TestClock::new();
        let (keeper, store) = (clock.clock(), clock.store_clock());
        let start = store();
        assert_eq!(keeper.now(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(7)).await;
        clock.put_forward(Duration::from_secs(3));
        assert_eq!(keeper.now(), Duration::from_secs(10));
        assert_eq!(store(), start + Duration::from_secs(10));
    }
}
