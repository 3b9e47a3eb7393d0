//! Partitions whose records wait before they are started.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::wall_clock::now;

/// The delay of a partition's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// How long they wait.
    pub time: Duration,
    /// The number of delays that the records have had before.
    pub stage: usize,
}

impl Delay {
    /// Computes when a record that was published at this time is due. `None` if that is out of range;
    /// then the record does not wait.
    pub fn due(&self, published: SystemTime) -> Option<SystemTime> {
        published.checked_add(self.time)
    }

    /// Computes how long a record that is due at `due` and was received at `received` still has to
    /// wait. `None` if it is due. The wait is at most the full delay counted from `received`,
    /// whatever the clocks say: a clock that is behind delays all records once, rather than one
    /// after another.
    pub(crate) fn remaining(&self, due: SystemTime, received: Instant) -> Option<Duration> {
        let remaining = due.duration_since(now()).ok()?;
        let remaining = remaining.min(self.time.saturating_sub(received.elapsed()));
        (!remaining.is_zero()).then_some(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn record_waits_at_most_the_delay_despite_clock_skew() {
        let delay = Delay { time: 60 * SECOND, stage: 1 };
        let (received, ahead) = (Instant::now(), now() + 3600 * SECOND);
        assert_eq!(delay.remaining(ahead, received), Some(60 * SECOND));
        tokio::time::advance(20 * SECOND).await;
        assert_eq!(delay.remaining(ahead, received), Some(40 * SECOND));
        tokio::time::advance(40 * SECOND).await;
        assert_eq!(delay.remaining(ahead, received), None);
        // With clocks that agree, the record may be due sooner.
        let remaining = delay.remaining(now() + SECOND, Instant::now()).unwrap();
        assert!(
            remaining <= SECOND && delay.remaining(now() - SECOND, Instant::now()).is_none(),
            "{remaining:?}"
        );
    }
}
