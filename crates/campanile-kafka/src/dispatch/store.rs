//! Whether the store answers. While it does not, one record at a time asks. What was not answered waits
//! each for itself.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::strand::StrandId;
use crate::backoff::{each, impatient};

/// The state of the store, as the records' errors tell it.
#[derive(Default)]
pub(super) struct StoreHealth {
    state: State,
    /// It answers again, and nobody was told yet.
    back: bool,
}

#[derive(Default)]
enum State {
    #[default]
    Up,
    /// It was down, and has answered since: it may be a part of it that is still away, such as one
    /// shard of several.
    Partly {
        /// When it did last.
        answered: Instant,
        /// How often, since it did not.
        in_row: usize,
        /// How often it did not, since it did.
        failures: usize,
    },
    Down {
        /// How many probes have failed, the outage's first record included.
        failures: u32,
        probe: Probe,
    },
}

pub(super) enum Probe {
    /// The next comes then.
    After(Pin<Box<Sleep>>),
    /// The next record is one, since then.
    Due(Instant),
    /// This record is one; then at the latest it counts as answered.
    Running(StrandId, Pin<Box<Sleep>>),
}

/// An acquire that was not answered by then has failed. So a probe that still runs has its lock, and
/// what takes so long is its handler, which must not hold up all others.
const ANSWERED: Duration = Duration::from_secs(6);

/// A probe that nobody makes in so long says that there is nobody to ask: while the store is down, whoever
/// waits for it asks at least once a second.
const ASKED: Duration = Duration::from_secs(3);

/// A store that has not answered so many times in a row, for so long, is down once more. Where few
/// ask, that may still be a part of it; then the others wait for the next probe.
const OUTAGE: (usize, Duration) = (3, Duration::from_secs(2));

/// After so many answers with no failure between them, the whole store is there.
const WHOLE: usize = 1_000;

impl StoreHealth {
    /// Whether a record may be dispatched.
    pub(super) fn allows(&self) -> bool {
        !matches!(self.state, State::Down { probe: Probe::After(_) | Probe::Running(..), .. })
    }

    /// Whether it does not answer.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Whether it does not answer those who ask. It is not known of a store that nobody asks any more,
    /// since the consumer is paused or has no records that could.
    pub(super) fn is_found_down(&self) -> bool {
        match &self.state {
            State::Down { probe: Probe::Due(since), .. } => since.elapsed() < ASKED,
            State::Down { .. } => true,
            State::Up | State::Partly { .. } => false,
        }
    }

    /// This record was dispatched.
    pub(super) fn dispatched(&mut self, id: StrandId) {
        if let State::Down { probe: probe @ Probe::Due(_), .. } = &mut self.state {
            *probe = Probe::Running(id, Box::pin(tokio::time::sleep(ANSWERED)));
        }
    }

    /// The store did not answer this record, which is to wait for itself: whoever comes next may ask
    /// another part of the store.
    pub(super) fn failed(&mut self, id: StrandId, error: &str) {
        let failures = match &mut self.state {
            State::Partly { answered, in_row, failures }
                if *failures < OUTAGE.0 || answered.elapsed() < OUTAGE.1 =>
            {
                tracing::debug!(error, "the store does not answer this record");
                *in_row = 0;
                *failures += 1;
                return;
            }
            State::Up | State::Partly { .. } => {
                tracing::warn!(error, "the store is down: nothing is dispatched until it answers");
                1
            }
            State::Down { failures, probe: Probe::Running(probe, _) } if *probe == id => {
                tracing::debug!(error, failures, "the store is still down");
                failures.saturating_add(1)
            }
            // Dispatched before the outage.
            State::Down { .. } => return,
        };
        let sleep = Box::pin(tokio::time::sleep(impatient().delay(failures)));
        self.state = State::Down { failures, probe: Probe::After(sleep) };
    }

    /// For how long a record waits that was not answered so often. While nothing else is dispatched, it
    /// may be the next probe; otherwise there may be many that wait.
    pub(super) fn back_off(&self, times: u32) -> Duration {
        let back_off = if self.is_down() { impatient() } else { each() };
        back_off.delay(times)
    }

    /// Whether the store has come back since this was last asked.
    pub(super) fn is_back(&mut self) -> bool {
        std::mem::take(&mut self.back)
    }

    /// This record ended, and the store had answered.
    pub(super) fn answered(&mut self, id: StrandId) {
        match &mut self.state {
            State::Up => {}
            State::Partly { answered, in_row, failures } => {
                *answered = Instant::now();
                *in_row += 1;
                *failures = 0;
                if *in_row >= WHOLE {
                    self.state = State::Up;
                }
            }
            State::Down { probe: Probe::Running(probe, _), .. } if *probe == id => self.up(),
            State::Down { .. } => {}
        }
    }

    fn up(&mut self) {
        tracing::info!("the store answers again");
        self.state = State::Partly { answered: Instant::now(), in_row: 0, failures: 0 };
        self.back = true;
    }

    /// This record ended, or was let go, without having asked the store: the next one is the probe.
    pub(super) fn not_asked(&mut self, id: StrandId) {
        if let State::Down { probe, .. } = &mut self.state
            && matches!(probe, Probe::Running(running, _) if *running == id)
        {
            *probe = Probe::Due(Instant::now());
        }
    }

    /// Whether the next probe has become due, or the one that runs has its answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let State::Down { probe, .. } = &mut self.state else {
            return Poll::Pending;
        };
        match probe {
            Probe::After(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                *probe = Probe::Due(Instant::now());
            }
            Probe::Running(_, answered) => {
                ready!(answered.as_mut().poll(cx));
                self.up();
            }
            Probe::Due(_) => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StrandId = StrandId::numbered(1);
    const OTHER: StrandId = StrandId::numbered(2);

    /// A store that is down, with its next probe due.
    async fn down() -> StoreHealth {
        let mut health = StoreHealth::default();
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
        assert!(health.allows());
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
    async fn a_store_that_nobody_asks_is_found_down_no_more_until_somebody_does() {
        let mut health = down().await;
        for _ in 0..2 {
            assert!(health.is_found_down());
            tokio::time::sleep(ASKED).await;
            assert!(!health.is_found_down());
            assert!(health.is_down(), "one at a time asks");
            health.dispatched(ONE);
            assert!(health.is_found_down());
            health.failed(ONE, "refused");
            assert!(health.is_found_down());
            std::future::poll_fn(|cx| health.poll(cx)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_whose_handler_takes_long_has_its_answer_and_holds_up_nobody() {
        let mut health = down().await;
        health.dispatched(ONE);
        let start = tokio::time::Instant::now();
        std::future::poll_fn(|cx| health.poll(cx)).await;
        assert!(health.allows());
        assert_eq!(start.elapsed(), ANSWERED);
    }

    /// A store that was down, and answers some.
    async fn partly() -> StoreHealth {
        let mut health = down().await;
        health.dispatched(ONE);
        health.answered(ONE);
        health
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_what_is_not_answered_stops_nobody_while_others_are() {
        let mut health = partly().await;
        for _ in 0..100 {
            (0..OUTAGE.0).for_each(|_| health.failed(ONE, "refused"));
            assert!(health.allows());
            tokio::time::sleep(OUTAGE.1).await;
            health.answered(OTHER);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_few_ask_a_part_that_is_away_stops_nobody_either() {
        let mut health = partly().await;
        for _ in 0..OUTAGE.0 {
            tokio::time::sleep(OUTAGE.1).await;
            health.failed(ONE, "refused");
            assert!(health.allows());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_after_an_outage_is_seen_when_nobody_is_answered_any_more() {
        let mut health = partly().await;
        tokio::time::sleep(OUTAGE.1).await;
        (0..OUTAGE.0).for_each(|_| health.failed(ONE, "refused"));
        assert!(health.allows());
        health.failed(OTHER, "refused");
        assert!(!health.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn that_it_is_back_is_told_once() {
        let mut health = partly().await;
        assert!(health.is_back());
        assert!(!health.is_back());
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_are_answered_for_long_the_next_failure_is_an_outage() {
        let mut health = partly().await;
        (0..WHOLE).for_each(|_| health.answered(OTHER));
        health.failed(ONE, "refused");
        assert!(!health.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn probes_come_at_most_a_second_apart() {
        let mut health = StoreHealth::default();
        health.failed(ONE, "refused");
        for _ in 0..40 {
            let start = tokio::time::Instant::now();
            std::future::poll_fn(|cx| health.poll(cx)).await;
            assert!(start.elapsed() <= Duration::from_secs(1) + Duration::from_millis(1));
            health.dispatched(ONE);
            health.failed(ONE, "refused");
        }
    }
}
