//! The circuit breaker between the scheduler and the store. The breaker is open while the store is
//! unavailable; it then admits one record at a time, as a probe.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::backoff::{record_backoff, server_backoff};
use crate::reports::QueueId;

/// A circuit breaker driven by the outcomes of attempts: a record's error shows whether the store
/// answered.
#[derive(Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// Whether the store has recovered since the last call of
    /// [`take_recovered`](Self::take_recovered).
    recovered: bool,
}

#[derive(Default)]
enum BreakerState {
    /// Records are started. The first failure opens the breaker.
    #[default]
    Closed,
    /// Records are started. The store answered after an outage, but a part of it, such as one shard
    /// of several, may still be unavailable.
    Recovering {
        /// The time of the last answer.
        last_answer: Instant,
        /// The number of answers since the last failure.
        answers: usize,
        /// The number of failures since the last answer.
        failures: usize,
    },
    /// The store is unavailable.
    Open {
        /// The number of failed probes, including the record that opened the breaker.
        failures: u32,
        probe: Probe,
    },
}

enum Probe {
    /// The next probe is due when this timer fires.
    After(Pin<Box<Sleep>>),
    /// The next record that is started is the probe. It has been due since this time.
    Due(Instant),
    /// This queue's first record is the probe. The probe counts as answered when the timer fires.
    Running(QueueId, Pin<Box<Sleep>>),
}

/// By this time an acquire has been answered or has failed. A probe that is still running therefore
/// holds its lock, and the time is spent in its handler, which must not hold up all other records.
const PROBE_TIMEOUT: Duration = Duration::from_secs(6);

/// While the breaker is open, records that wait for the store retry at least once a second. A probe
/// that has been due for longer than this shows that no record is waiting for the store.
const IDLE_AFTER: Duration = Duration::from_secs(3);

/// After this many failures in a row over this time, a recovering store counts as unavailable
/// again.
const REOPEN_THRESHOLD: (usize, Duration) = (3, Duration::from_secs(2));

/// After this many answers in a row, the whole store counts as available.
const CLOSE_THRESHOLD: usize = 1_000;

impl Breaker {
    /// Checks whether a record may be started.
    pub(crate) fn allows(&self) -> bool {
        !matches!(
            self.state,
            BreakerState::Open { probe: Probe::After(_) | Probe::Running(..), .. }
        )
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, BreakerState::Open { .. })
    }

    /// Checks whether the store is known to be unavailable. This is unknown, and the result is
    /// `false`, when no record asks the store any more: the consumer is paused, or it has no
    /// records that could ask.
    pub(crate) fn is_store_unavailable(&self) -> bool {
        match &self.state {
            BreakerState::Open { probe: Probe::Due(since), .. } => since.elapsed() < IDLE_AFTER,
            BreakerState::Open { .. } => true,
            BreakerState::Closed | BreakerState::Recovering { .. } => false,
        }
    }

    /// Notes that a queue's first record was started. The record becomes the probe if one is due.
    pub(crate) fn on_start(&mut self, id: QueueId) {
        if let BreakerState::Open { probe: probe @ Probe::Due(_), .. } = &mut self.state {
            *probe = Probe::Running(id, Box::pin(tokio::time::sleep(PROBE_TIMEOUT)));
        }
    }

    /// Notes that the store did not answer this record. The record waits on its own timer, since
    /// the next record may use another part of the store.
    pub(crate) fn on_store_failure(&mut self, id: QueueId, error: &str) {
        let failures = match &mut self.state {
            BreakerState::Recovering { last_answer, answers, failures }
                if *failures < REOPEN_THRESHOLD.0 || last_answer.elapsed() < REOPEN_THRESHOLD.1 =>
            {
                tracing::debug!(error, "the store did not answer; retrying this record");
                *answers = 0;
                *failures += 1;
                return;
            }
            BreakerState::Closed | BreakerState::Recovering { .. } => {
                tracing::warn!(
                    error,
                    "the store is unavailable; no records are started until it answers"
                );
                1
            }
            BreakerState::Open { failures, probe: Probe::Running(probe, _) } if *probe == id => {
                tracing::debug!(error, failures, "the store is still unavailable");
                failures.saturating_add(1)
            }
            // The record was started before the outage.
            BreakerState::Open { .. } => return,
        };
        let sleep = Box::pin(tokio::time::sleep(server_backoff().delay(failures)));
        self.state = BreakerState::Open { failures, probe: Probe::After(sleep) };
    }

    /// Chooses the backoff of a record that the store did not answer this many times. The backoff
    /// is short while the breaker is open, since the record may be the next probe. Otherwise it is
    /// longer, since many records may be waiting.
    pub(crate) fn backoff(&self, times: u32) -> Duration {
        let backoff = if self.is_open() { server_backoff() } else { record_backoff() };
        backoff.delay(times)
    }

    pub(crate) fn take_recovered(&mut self) -> bool {
        std::mem::take(&mut self.recovered)
    }

    /// Notes that the store answered this record.
    pub(crate) fn on_store_answer(&mut self, id: QueueId) {
        match &mut self.state {
            BreakerState::Closed => {}
            BreakerState::Recovering { last_answer, answers, failures } => {
                *last_answer = Instant::now();
                *answers += 1;
                *failures = 0;
                if *answers >= CLOSE_THRESHOLD {
                    self.state = BreakerState::Closed;
                }
            }
            BreakerState::Open { probe: Probe::Running(probe, _), .. } if *probe == id => {
                self.recover()
            }
            BreakerState::Open { .. } => {}
        }
    }

    fn recover(&mut self) {
        tracing::info!("the store is available again");
        self.state =
            BreakerState::Recovering { last_answer: Instant::now(), answers: 0, failures: 0 };
        self.recovered = true;
    }

    /// Notes that this record's attempt ended, or was dropped, without an answer from the store.
    /// If the record was the probe, the next record becomes the probe.
    pub(crate) fn on_no_store_call(&mut self, id: QueueId) {
        if let BreakerState::Open { probe, .. } = &mut self.state
            && matches!(probe, Probe::Running(running, _) if *running == id)
        {
            *probe = Probe::Due(Instant::now());
        }
    }

    /// Polls the timer of the next probe, or of the probe in flight.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let BreakerState::Open { probe, .. } = &mut self.state else {
            return Poll::Pending;
        };
        match probe {
            Probe::After(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                *probe = Probe::Due(Instant::now());
            }
            Probe::Running(_, timeout) => {
                ready!(timeout.as_mut().poll(cx));
                self.recover();
            }
            Probe::Due(_) => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: QueueId = QueueId::numbered(1);
    const OTHER: QueueId = QueueId::numbered(2);

    /// Creates an open breaker with a due probe.
    async fn open() -> Breaker {
        let mut breaker = Breaker::default();
        breaker.on_store_failure(ONE, "refused");
        assert!(!breaker.allows());
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn open_breaker_allows_one_record_at_a_time() {
        let mut breaker = open().await;
        assert!(breaker.allows());
        breaker.on_start(ONE);
        assert!(!breaker.allows());
        breaker.on_store_failure(ONE, "refused");
        assert!(!breaker.allows());
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answered_probe_closes_the_breaker() {
        let mut breaker = open().await;
        breaker.on_start(ONE);
        breaker.on_store_answer(OTHER);
        assert!(!breaker.allows(), "the record was started before the outage");
        breaker.on_store_answer(ONE);
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn probe_without_a_store_call_makes_room_for_the_next() {
        let mut breaker = open().await;
        breaker.on_start(ONE);
        breaker.on_no_store_call(OTHER);
        assert!(!breaker.allows());
        breaker.on_no_store_call(ONE);
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_store_is_not_reported_unavailable() {
        let mut breaker = open().await;
        for _ in 0..2 {
            assert!(breaker.is_store_unavailable());
            tokio::time::sleep(IDLE_AFTER).await;
            assert!(!breaker.is_store_unavailable());
            assert!(breaker.is_open(), "records still probe one at a time");
            breaker.on_start(ONE);
            assert!(breaker.is_store_unavailable());
            breaker.on_store_failure(ONE, "refused");
            assert!(breaker.is_store_unavailable());
            std::future::poll_fn(|cx| breaker.poll(cx)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_handler_of_a_probe_counts_as_answered() {
        let mut breaker = open().await;
        breaker.on_start(ONE);
        let start = tokio::time::Instant::now();
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        assert!(breaker.allows());
        assert_eq!(start.elapsed(), PROBE_TIMEOUT);
    }

    async fn recovering() -> Breaker {
        let mut breaker = open().await;
        breaker.on_start(ONE);
        breaker.on_store_answer(ONE);
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_shard_does_not_open_a_recovering_breaker() {
        let mut breaker = recovering().await;
        for _ in 0..100 {
            (0..REOPEN_THRESHOLD.0).for_each(|_| breaker.on_store_failure(ONE, "refused"));
            assert!(breaker.allows());
            tokio::time::sleep(REOPEN_THRESHOLD.1).await;
            breaker.on_store_answer(OTHER);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_failures_do_not_open_a_recovering_breaker() {
        let mut breaker = recovering().await;
        for _ in 0..REOPEN_THRESHOLD.0 {
            tokio::time::sleep(REOPEN_THRESHOLD.1).await;
            breaker.on_store_failure(ONE, "refused");
            assert!(breaker.allows());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn second_outage_opens_a_recovering_breaker() {
        let mut breaker = recovering().await;
        tokio::time::sleep(REOPEN_THRESHOLD.1).await;
        (0..REOPEN_THRESHOLD.0).for_each(|_| breaker.on_store_failure(ONE, "refused"));
        assert!(breaker.allows());
        breaker.on_store_failure(OTHER, "refused");
        assert!(!breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn recovery_is_reported_once() {
        let mut breaker = recovering().await;
        assert!(breaker.take_recovered());
        assert!(!breaker.take_recovered());
    }

    #[tokio::test(start_paused = true)]
    async fn closed_breaker_opens_at_the_first_failure() {
        let mut breaker = recovering().await;
        (0..CLOSE_THRESHOLD).for_each(|_| breaker.on_store_answer(OTHER));
        breaker.on_store_failure(ONE, "refused");
        assert!(!breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn probes_are_at_most_a_second_apart() {
        let mut breaker = Breaker::default();
        breaker.on_store_failure(ONE, "refused");
        for _ in 0..40 {
            let start = tokio::time::Instant::now();
            std::future::poll_fn(|cx| breaker.poll(cx)).await;
            assert!(start.elapsed() <= Duration::from_secs(1) + Duration::from_millis(1));
            breaker.on_start(ONE);
            breaker.on_store_failure(ONE, "refused");
        }
    }
}
