//! The side of transactions that runs on the driver's thread: commits them one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::ConsumerGroupMetadata;

use super::Terms;
use super::batch::{Batch, Request};
use super::positions::{Position, Positions};
use super::worker::{Answer, Worker};
use crate::backoff::impatient;
use crate::config::refusal;
use crate::driver::Assignment;
use crate::error::ConsumerError;
use crate::kafka::{Settings, SourceWaker};

/// Commits batches, one after the other.
pub(crate) struct Transactor {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    state: State,
    clock: Clock,
    /// The number of consecutive transactions that were aborted.
    failures: u32,
    positions: Positions,
    /// Set when no caller waits for the threads' answers any more.
    left: Arc<AtomicBool>,
}

enum State {
    /// No batch is pending.
    Idle,
    /// The worker is committing a batch.
    Busy,
    /// A batch was not committed, and is sent again at this time.
    Again { batch: Batch, at: Duration },
    /// No further transaction is possible.
    Ended,
}

/// The result of the transaction in flight.
pub(crate) enum Committed {
    /// There is no result yet, or no transaction is in flight.
    Nothing,
    /// The transaction is committed.
    All,
    /// The transaction was aborted; its batch is kept, and sent again.
    Aborted,
    /// No further transaction is possible. Returned once.
    Ended(ConsumerError),
}

impl Transactor {
    /// Starts the worker, and waits until it has acquired the transactional id. Returns `None` at a
    /// shutdown.
    pub(crate) fn start(
        terms: &Terms,
        settings: &Settings,
        waker: SourceWaker,
    ) -> Result<Option<Self>, ConsumerError> {
        let producer = terms.producer(false);
        let producer = producer.map_err(|error| ConsumerError::Config(refusal(error)))?;
        let (requests, taken) = channel();
        let (answered, answers) = channel();
        let left = Arc::new(AtomicBool::new(false));
        let clock = Clock::boot();
        let start = clock.now();
        let state = State::Idle;
        let positions = Positions::new(terms.consumer.clone(), left.clone(), waker.clone());
        let this =
            Self { requests, answers, state, clock, failures: 0, positions, left: left.clone() };
        let worker = Worker::new(producer, terms.clone(), left, waker);
        let thread = thread::Builder::new().name("campanile-transactions".into());
        // The thread is never joined: a broker that does not respond must not delay the shutdown.
        thread.spawn(move || worker.run(taken, answered)).map_err(|error| {
            ConsumerError::kafka(format!("failed to spawn a thread: {error}"), None)
        })?;
        loop {
            match this.answers.recv_timeout(Duration::from_millis(20)) {
                Ok(Answer::Ended(error)) => return Err(error),
                Ok(_) => return Ok(Some(this)),
                Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
                Err(RecvTimeoutError::Timeout) if settings.control.is_shutting_down() => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            settings.control.vitals().round();
            if this.clock.now() - start >= settings.start_timeout {
                let what = format!(
                    "timed out waiting for the transaction coordinator after {:?}",
                    settings.start_timeout
                );
                return Err(ConsumerError::kafka(what, None));
            }
        }
    }

    /// Starts fetching the start positions of these newly assigned partitions.
    pub(crate) fn fetch_positions(
        &self,
        partitions: Vec<Arc<Assignment>>,
    ) -> Result<(), ConsumerError> {
        self.positions.fetch(partitions)
    }

    /// Takes the start positions of partitions, if any have been fetched.
    pub(crate) fn poll_positions(&self) -> Option<Result<Vec<Position>, ConsumerError>> {
        self.positions.poll()
    }

    /// Polls the transaction in flight for its result.
    pub(crate) fn poll(&mut self) -> Committed {
        match self.answers.try_recv() {
            Ok(answer) => self.answered(answer),
            Err(TryRecvError::Disconnected) if matches!(self.state, State::Busy) => {
                self.state = State::Ended;
                Committed::Ended(panicked())
            }
            Err(_) => Committed::Nothing,
        }
    }

    /// Starts a transaction with the finished records of these partitions, or retries an aborted one.
    /// Returns whether a transaction is in flight.
    ///
    /// `group` gets the current generation of the group: `None` if this consumer is not a member.
    pub(crate) fn commit(
        &mut self,
        partitions: &[Arc<Assignment>],
        group: impl FnOnce() -> Option<ConsumerGroupMetadata>,
    ) -> bool {
        let batch = match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle if Batch::is_due(partitions) => Batch::of(partitions),
            State::Again { batch, at } if self.clock.now() >= at => batch.ours(),
            state => {
                let busy = matches!(state, State::Busy);
                self.state = state;
                return busy;
            }
        };
        if batch.is_empty() {
            return false;
        }
        let Some(group) = group() else {
            self.state = State::Again { batch, at: self.clock.now() };
            return false;
        };
        self.state = State::Busy;
        // Fails only if the worker has panicked, which the next poll reports.
        let _ = self.requests.send(Request { batch, group });
        true
    }

    fn answered(&mut self, answer: Answer) -> Committed {
        match answer {
            Answer::Ready => Committed::Nothing,
            Answer::Committed(batch) => {
                batch.committed();
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!("transaction committed again after aborts");
                }
                self.state = State::Idle;
                Committed::All
            }
            Answer::Aborted(batch, error) => {
                self.failures = self.failures.saturating_add(1);
                // Rate-limits the event, so that an outage does not fill the log.
                if self.failures.is_power_of_two() {
                    let times = self.failures;
                    tracing::warn!(error, times, "transaction aborted; retrying");
                }
                let at = self.clock.now() + impatient().delay(self.failures);
                self.state = State::Again { batch, at };
                Committed::Aborted
            }
            Answer::Ended(error) => {
                self.state = State::Ended;
                Committed::Ended(error)
            }
        }
    }
}

impl Drop for Transactor {
    fn drop(&mut self) {
        self.left.store(true, Ordering::Release);
    }
}

fn panicked() -> ConsumerError {
    ConsumerError::kafka("the transaction worker's thread has panicked", None)
}
