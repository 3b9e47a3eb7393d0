//! Commits transactions one after the other: the side of the driver's thread.

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
    /// How many times in a row nothing was committed.
    failures: u32,
    positions: Positions,
    /// Says to the threads that their answers are not waited for any more.
    left: Arc<AtomicBool>,
}

enum State {
    Idle,
    /// The worker has a batch.
    Busy,
    /// A batch was aborted, and is sent again at that time.
    Again {
        batch: Batch,
        at: Duration,
    },
    /// There are no more transactions.
    Ended,
}

/// What has come of the transaction in flight.
pub(crate) enum Committed {
    /// Nothing yet, or there is none.
    Nothing,
    /// All of it is committed.
    All,
    /// Nothing of it is; it is kept, and sent again.
    Aborted,
    /// There can be no more transactions. Returned once.
    Ended(ConsumerError),
}

impl Transactor {
    /// Starts the worker, and waits until it has the id; `None` at a shutdown.
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
        // Nothing joins it: a broker that does not answer must not hold up the end.
        thread.spawn(move || worker.run(taken, answered)).map_err(|error| {
            ConsumerError::kafka(format!("no thread for transactions: {error}"), None)
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
                    "the transactions' coordinator did not answer within {:?}",
                    settings.start_timeout
                );
                return Err(ConsumerError::kafka(what, None));
            }
        }
    }

    /// Starts to fetch where these partitions start, which are newly assigned.
    pub(crate) fn fetch_positions(
        &self,
        partitions: Vec<Arc<Assignment>>,
    ) -> Result<(), ConsumerError> {
        self.positions.fetch(partitions)
    }

    /// Returns where partitions start, if some was fetched.
    pub(crate) fn poll_positions(&self) -> Option<Result<Vec<Position>, ConsumerError>> {
        self.positions.poll()
    }

    /// Returns what has come of the transaction in flight.
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

    /// Starts a transaction with what is finished of these partitions, or with what was aborted. Returns
    /// whether one is in flight.
    ///
    /// `group` is the group's present generation; `None` where this consumer is not in it.
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
        // A worker that is gone has panicked, as the next poll finds.
        let _ = self.requests.send(Request { batch, group });
        true
    }

    fn answered(&mut self, answer: Answer) -> Committed {
        match answer {
            Answer::Ready => Committed::Nothing,
            Answer::Committed(batch) => {
                batch.committed();
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!("transactions are committed again");
                }
                self.state = State::Idle;
                Committed::All
            }
            Answer::Aborted(batch, error) => {
                self.failures = self.failures.saturating_add(1);
                // So that an outage does not fill a log.
                if self.failures.is_power_of_two() {
                    let times = self.failures;
                    tracing::warn!(error, times, "a transaction was aborted; retrying");
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
    ConsumerError::kafka("the thread of the transactions has panicked", None)
}
