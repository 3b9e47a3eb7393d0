//! Limits the number of items per second.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The longest delay that is caught up, so that the rate is held while a server responds slowly from
/// time to time, and no burst follows an outage.
const MAX_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Pacer {
    /// The time for one item. Zero for no limit.
    interval: Duration,
    /// When the items so far have used up their time. `None` before the first ones.
    next: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(rate: Option<NonZeroU32>) -> Self {
        let interval = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.get());
        Self { interval, next: None }
    }

    /// Waits until this many more items may be handled. The time that the items before took is
    /// part of their time.
    pub(crate) async fn wait(&mut self, items: u32) {
        if self.interval.is_zero() {
            return;
        }
        let now = Instant::now();
        let delay = self.next.map_or(Duration::ZERO, |next| now.saturating_duration_since(next));
        // Before now, if there was a delay.
        let start = self.next.unwrap_or(now) + delay.saturating_sub(MAX_DELAY);
        let next = start + self.interval * items;
        self.next = Some(next);
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for rounds of 10 items, which each take this many milliseconds.
    async fn handle(pacer: &mut Pacer, rounds: impl IntoIterator<Item = u64>) -> Duration {
        let start = Instant::now();
        for millis in rounds {
            pacer.wait(10).await;
            tokio::time::advance(Duration::from_millis(millis)).await;
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn rate_is_held_by_rounds_of_any_duration() {
        let mut pacer = Pacer::new(NonZeroU32::new(100));
        let took = handle(&mut pacer, (0..20).map(|round| if round == 9 { 500 } else { 40 })).await;
        assert_eq!(took, Duration::from_millis(2_040));
    }

    #[tokio::test(start_paused = true)]
    async fn items_of_one_second_follow_an_outage_at_once() {
        tokio::time::advance(Duration::from_secs(60)).await;
        let mut pacer = Pacer::new(NonZeroU32::new(100));
        assert_eq!(handle(&mut pacer, [0, 0]).await, Duration::from_millis(200));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(handle(&mut pacer, [0; 10]).await, Duration::ZERO);
        assert_eq!(handle(&mut pacer, [0; 10]).await, Duration::from_secs(1));
    }
}
