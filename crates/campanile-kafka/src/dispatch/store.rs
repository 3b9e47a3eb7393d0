//! Whether the store answers. While it does not, one record at a time asks.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use crate::backoff::impatient;
use crate::slot::SlotId;

/// The state of the store, as the records' errors tell it.
#[derive(Default)]
pub(super) enum StoreHealth {
    #[default]
    Up,
    Down {
        /// How many probes have failed, the outage's first record included.
        failures: u32,
        probe: Probe,
    },
}

pub(super) enum Probe {
    /// The next comes then.
    After(Pin<Box<Sleep>>),
    /// The next record is one.
    Due,
    /// The record of this slot is one; then at the latest it counts as answered.
    Running(SlotId, Pin<Box<Sleep>>),
}

/// An acquire that was not answered by then has failed. So a probe that still runs has its lock, and
/// what takes so long is its handler, which must not hold up all others.
const ANSWERED: Duration = Duration::from_secs(6);

impl StoreHealth {
    /// Whether a record may be dispatched.
    pub(super) fn allows(&self) -> bool {
        matches!(self, Self::Up | Self::Down { probe: Probe::Due, .. })
    }

    /// A record of this slot was dispatched.
    pub(super) fn dispatched(&mut self, slot: SlotId) {
        if let Self::Down { probe: probe @ Probe::Due, .. } = self {
            *probe = Probe::Running(slot, Box::pin(tokio::time::sleep(ANSWERED)));
        }
    }

    /// The store did not answer a record of this slot.
    pub(super) fn failed(&mut self, slot: SlotId, error: &str) {
        let failures = match self {
            Self::Up => {
                tracing::warn!(error, "the store is down: nothing is dispatched until it answers");
                1
            }
            Self::Down { failures, probe: Probe::Running(probe, _) } if *probe == slot => {
                tracing::debug!(error, failures, "the store is still down");
                failures.saturating_add(1)
            }
            // Dispatched before the outage.
            Self::Down { .. } => return,
        };
        let sleep = Box::pin(tokio::time::sleep(impatient().delay(failures)));
        *self = Self::Down { failures, probe: Probe::After(sleep) };
    }

    /// A record of this slot ended, and the store had answered.
    pub(super) fn answered(&mut self, slot: SlotId) {
        if matches!(self, Self::Down { probe: Probe::Running(probe, _), .. } if *probe == slot) {
            self.up();
        }
    }

    fn up(&mut self) {
        tracing::info!("the store answers again");
        *self = Self::Up;
    }

    /// A record of this slot ended, or was let go, without having asked the store: the next one is
    /// the probe.
    pub(super) fn not_asked(&mut self, slot: SlotId) {
        if let Self::Down { probe, .. } = self
            && matches!(probe, Probe::Running(running, _) if *running == slot)
        {
            *probe = Probe::Due;
        }
    }

    /// Whether the next probe has become due, or the one that runs has its answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self::Down { probe, .. } = self else {
            return Poll::Pending;
        };
        match probe {
            Probe::After(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                *probe = Probe::Due;
            }
            Probe::Running(_, answered) => {
                ready!(answered.as_mut().poll(cx));
                self.up();
            }
            Probe::Due => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SlotId = SlotId(1);
    const OTHER: SlotId = SlotId(2);

    /// A store that is down, with its next probe due.
    async fn down() -> StoreHealth {
        let mut health = StoreHealth::Up;
        health.failed(ONE, "refused");
        assert!(!health.allows());
        std::future::poll_fn(|cx| health.poll(cx)).await;
        health
    }

    #[tokio::test(start_paused = true)]
    async fn while_it_is_down_one_record_at_a_time_asks() {
        let mut health = down().await;
        assert!(health.allows());
        health.dispatched(ONE);
        assert!(!health.allows());
        health.failed(ONE, "refused");
        assert!(!health.allows());
        std::future::poll_fn(|cx| health.poll(cx)).await;
        assert!(health.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_probe_that_was_answered_ends_the_outage() {
        let mut health = down().await;
        health.dispatched(ONE);
        health.answered(OTHER);
        assert!(!health.allows(), "dispatched before the outage");
        health.answered(ONE);
        assert!(matches!(health, StoreHealth::Up));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_did_not_ask_makes_room_for_the_next() {
        let mut health = down().await;
        health.dispatched(ONE);
        health.not_asked(OTHER);
        assert!(!health.allows());
        health.not_asked(ONE);
        assert!(health.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_whose_handler_takes_long_has_its_answer_and_holds_up_nobody() {
        let mut health = down().await;
        health.dispatched(ONE);
        let start = tokio::time::Instant::now();
        std::future::poll_fn(|cx| health.poll(cx)).await;
        assert!(matches!(health, StoreHealth::Up));
        assert_eq!(start.elapsed(), ANSWERED);
    }

    #[tokio::test(start_paused = true)]
    async fn probes_come_at_most_five_seconds_apart() {
        let mut health = StoreHealth::Up;
        health.failed(ONE, "refused");
        for _ in 0..40 {
            let start = tokio::time::Instant::now();
            std::future::poll_fn(|cx| health.poll(cx)).await;
            assert!(start.elapsed() <= Duration::from_secs(5) + Duration::from_millis(1));
            health.dispatched(ONE);
            health.failed(ONE, "refused");
        }
    }
}
