//! Limits the number of items per second.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

pub(crate) struct Pacer {
    /// The time for one item. Zero for no limit.
    interval: Duration,
    /// When the items so far have used up their time.
    next: Instant,
}

impl Pacer {
    pub(crate) fn new(rate: Option<NonZeroU32>) -> Self {
        let interval = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.get());
        Self { interval, next: Instant::now() }
    }

    /// Waits until this many more items may be handled. The time that the items before took is
    /// part of their time. A longer delay is not caught up by a burst.
    pub(crate) async fn wait(&mut self, items: u32) {
        if self.interval.is_zero() {
            return;
        }
        self.next = (self.next + self.interval * items).max(Instant::now());
        sleep_until(self.next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn items_take_their_time_and_delays_cause_no_burst() {
        let start = Instant::now();
        let mut pacer = Pacer::new(NonZeroU32::new(100));
        for _ in 0..20 {
            pacer.wait(10).await;
            tokio::time::advance(Duration::from_millis(40)).await;
        }
        assert_eq!(start.elapsed(), Duration::from_millis(2_040));
        tokio::time::advance(Duration::from_secs(60)).await;
        pacer.wait(10).await;
        pacer.wait(10).await;
        assert_eq!(start.elapsed(), Duration::from_millis(62_140));
    }
}
