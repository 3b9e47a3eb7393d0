//! The breaker between the scheduler and the store: while the store does not answer, it is open, and one
//! record at a time is let through as a probe.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::queue::QueueId;
use crate::backoff::{each, impatient};

/// Opens and closes by what the records' errors say of the store.
#[derive(Default)]
pub(super) struct Breaker {
    state: State,
    /// The store has recovered since [`take_recovered`](Self::take_recovered) was called last.
    recovered: bool,
}

#[derive(Default)]
enum State {
    /// Records are started; the first failure opens the breaker.
    #[default]
    Closed,
    /// Records are started. The store has answered after an outage, but a part of it, such as one
    /// shard of several, may still be unavailable.
    Recovering {
        /// When the store answered last.
        answered: Instant,
        /// How often it has answered since the last failure.
        in_row: usize,
        /// How often it has failed since the last answer.
        failures: usize,
    },
    /// The store does not answer.
    Open {
        /// How many probes have failed, the outage's first record included.
        failures: u32,
        probe: Probe,
    },
}

enum Probe {
    /// The next one is due after this.
    After(Pin<Box<Sleep>>),
    /// The next record is one, since then.
    Due(Instant),
    /// This record is one. When the time is up, it counts as answered.
    Running(QueueId, Pin<Box<Sleep>>),
}

/// By then an acquire is answered or has failed. So a probe that still runs has its lock, and what takes
/// long is its handler, which must not hold up all others.
const ANSWERED: Duration = Duration::from_secs(6);

/// While the breaker is open, records that wait for the store try at least once a second. If none has for
/// this long, there is none.
const ASKED: Duration = Duration::from_secs(3);

/// After this many failures in a row over this time, a recovering store is taken for unavailable again.
const OUTAGE: (usize, Duration) = (3, Duration::from_secs(2));

/// After this many answers in a row, the whole store is available.
const WHOLE: usize = 1_000;

impl Breaker {
    /// Returns whether a record may be started.
    pub(super) fn allows(&self) -> bool {
        !matches!(self.state, State::Open { probe: Probe::After(_) | Probe::Running(..), .. })
    }

    /// Returns whether the store does not answer.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Returns whether the store does not answer the records that ask. It is not known of a store that
    /// none asks any more, since the consumer is paused or has no records that could.
    pub(super) fn is_store_unavailable(&self) -> bool {
        match &self.state {
            State::Open { probe: Probe::Due(since), .. } => since.elapsed() < ASKED,
            State::Open { .. } => true,
            State::Closed | State::Recovering { .. } => false,
        }
    }

    /// A queue's first record was started.
    pub(super) fn started(&mut self, id: QueueId) {
        if let State::Open { probe: probe @ Probe::Due(_), .. } = &mut self.state {
            *probe = Probe::Running(id, Box::pin(tokio::time::sleep(ANSWERED)));
        }
    }

    /// The store did not answer this record, which waits by itself: the next one may ask another part
    /// of the store.
    pub(super) fn failed(&mut self, id: QueueId, error: &str) {
        let failures = match &mut self.state {
            State::Recovering { answered, in_row, failures }
                if *failures < OUTAGE.0 || answered.elapsed() < OUTAGE.1 =>
            {
                tracing::debug!(error, "the store did not answer; retrying this record");
                *in_row = 0;
                *failures += 1;
                return;
            }
            State::Closed | State::Recovering { .. } => {
                tracing::warn!(
                    error,
                    "the store is unavailable; no record is started until it answers"
                );
                1
            }
            State::Open { failures, probe: Probe::Running(probe, _) } if *probe == id => {
                tracing::debug!(error, failures, "the store is still unavailable");
                failures.saturating_add(1)
            }
            // Started before the outage.
            State::Open { .. } => return,
        };
        let sleep = Box::pin(tokio::time::sleep(impatient().delay(failures)));
        self.state = State::Open { failures, probe: Probe::After(sleep) };
    }

    /// Returns how long a record waits that was not answered this many times. While the breaker is open
    /// it may be the next probe; otherwise many may wait.
    pub(super) fn backoff(&self, times: u32) -> Duration {
        let backoff = if self.is_open() { impatient() } else { each() };
        backoff.delay(times)
    }

    /// Returns whether the store has recovered since the last call.
    pub(super) fn take_recovered(&mut self) -> bool {
        std::mem::take(&mut self.recovered)
    }

    /// The store has answered this record.
    pub(super) fn answered(&mut self, id: QueueId) {
        match &mut self.state {
            State::Closed => {}
            State::Recovering { answered, in_row, failures } => {
                *answered = Instant::now();
                *in_row += 1;
                *failures = 0;
                if *in_row >= WHOLE {
                    self.state = State::Closed;
                }
            }
            State::Open { probe: Probe::Running(probe, _), .. } if *probe == id => self.recover(),
            State::Open { .. } => {}
        }
    }

    fn recover(&mut self) {
        tracing::info!("the store is available again");
        self.state = State::Recovering { answered: Instant::now(), in_row: 0, failures: 0 };
        self.recovered = true;
    }

    /// This record's attempt has ended, or was dropped, without a word from the store: the next record is
    /// the probe.
    pub(super) fn not_asked(&mut self, id: QueueId) {
        if let State::Open { probe, .. } = &mut self.state
            && matches!(probe, Probe::Running(running, _) if *running == id)
        {
            *probe = Probe::Due(Instant::now());
        }
    }

    /// Polls the time of the next probe, or of the one that runs.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let State::Open { probe, .. } = &mut self.state else {
            return Poll::Pending;
        };
        match probe {
            Probe::After(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                *probe = Probe::Due(Instant::now());
            }
            Probe::Running(_, answered) => {
                ready!(answered.as_mut().poll(cx));
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

    /// An open breaker whose next probe is due.
    async fn open() -> Breaker {
        let mut breaker = Breaker::default();
        breaker.failed(ONE, "refused");
        assert!(!breaker.allows());
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn open_breaker_lets_one_record_through_at_a_time() {
        let mut breaker = open().await;
        assert!(breaker.allows());
        breaker.started(ONE);
        assert!(!breaker.allows());
        breaker.failed(ONE, "refused");
        assert!(!breaker.allows());
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answered_probe_closes_the_breaker() {
        let mut breaker = open().await;
        breaker.started(ONE);
        breaker.answered(OTHER);
        assert!(!breaker.allows(), "started before the outage");
        breaker.answered(ONE);
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn probe_without_a_store_call_makes_room_for_the_next() {
        let mut breaker = open().await;
        breaker.started(ONE);
        breaker.not_asked(OTHER);
        assert!(!breaker.allows());
        breaker.not_asked(ONE);
        assert!(breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn store_that_no_record_asks_is_not_reported_unavailable() {
        let mut breaker = open().await;
        for _ in 0..2 {
            assert!(breaker.is_store_unavailable());
            tokio::time::sleep(ASKED).await;
            assert!(!breaker.is_store_unavailable());
            assert!(breaker.is_open(), "one at a time asks");
            breaker.started(ONE);
            assert!(breaker.is_store_unavailable());
            breaker.failed(ONE, "refused");
            assert!(breaker.is_store_unavailable());
            std::future::poll_fn(|cx| breaker.poll(cx)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_handler_of_a_probe_counts_as_answered() {
        let mut breaker = open().await;
        breaker.started(ONE);
        let start = tokio::time::Instant::now();
        std::future::poll_fn(|cx| breaker.poll(cx)).await;
        assert!(breaker.allows());
        assert_eq!(start.elapsed(), ANSWERED);
    }

    async fn recovering() -> Breaker {
        let mut breaker = open().await;
        breaker.started(ONE);
        breaker.answered(ONE);
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_shard_does_not_open_a_recovering_breaker() {
        let mut breaker = recovering().await;
        for _ in 0..100 {
            (0..OUTAGE.0).for_each(|_| breaker.failed(ONE, "refused"));
            assert!(breaker.allows());
            tokio::time::sleep(OUTAGE.1).await;
            breaker.answered(OTHER);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_failures_do_not_open_a_recovering_breaker() {
        let mut breaker = recovering().await;
        for _ in 0..OUTAGE.0 {
            tokio::time::sleep(OUTAGE.1).await;
            breaker.failed(ONE, "refused");
            assert!(breaker.allows());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn second_outage_opens_a_recovering_breaker() {
        let mut breaker = recovering().await;
        tokio::time::sleep(OUTAGE.1).await;
        (0..OUTAGE.0).for_each(|_| breaker.failed(ONE, "refused"));
        assert!(breaker.allows());
        breaker.failed(OTHER, "refused");
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
        (0..WHOLE).for_each(|_| breaker.answered(OTHER));
        breaker.failed(ONE, "refused");
        assert!(!breaker.allows());
    }

    #[tokio::test(start_paused = true)]
    async fn probes_are_at_most_a_second_apart() {
        let mut breaker = Breaker::default();
        breaker.failed(ONE, "refused");
        for _ in 0..40 {
            let start = tokio::time::Instant::now();
            std::future::poll_fn(|cx| breaker.poll(cx)).await;
            assert!(start.elapsed() <= Duration::from_secs(1) + Duration::from_millis(1));
            breaker.started(ONE);
            breaker.failed(ONE, "refused");
        }
    }
}
