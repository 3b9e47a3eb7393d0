//! The side of the consumer's thread: which records are committed, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::ConsumerGroupMetadata;

use super::Terms;
use super::batch::{Batch, Request};
use super::worker::{Answer, Worker};
use crate::backoff::impatient;
use crate::config::refusal;
use crate::error::ConsumerError;
use crate::slot::Slot;

/// How long a partition that is given away waits for its last transaction: less than the dispatcher
/// waits for the end. What is not committed by then is the next owner's, or was just committed.
const LAST: Duration = Duration::from_secs(4);

/// How soon it is looked again whether this consumer is in its group.
const OUTSIDE: Duration = Duration::from_millis(100);

/// Commits batches, one after the other.
pub(crate) struct Transactor {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    state: State,
    interval: Duration,
    clock: Clock,
    /// When it was last looked what is finished.
    looked: Duration,
    /// How often in a row nothing was committed.
    failures: u32,
    /// Tells the worker that nobody waits any more.
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

/// The partitions that may be committed.
pub(crate) type Slots<'a> = &'a dyn Fn() -> Vec<Arc<Slot>>;

/// The group's present generation; `None` where this consumer is not in it.
pub(crate) type Group<'a> = &'a dyn Fn() -> Option<ConsumerGroupMetadata>;

impl Transactor {
    /// Starts the worker, and waits until it has the id; `None` if this does not go on until then.
    pub(crate) fn start(
        terms: &Terms,
        goes_on: impl Fn() -> Result<bool, ConsumerError>,
    ) -> Result<Option<Self>, ConsumerError> {
        let producer = terms.producer(false);
        let producer = producer.map_err(|error| ConsumerError::Config(refusal(error)))?;
        let (requests, taken) = channel();
        let (answered, answers) = channel();
        let left = Arc::new(AtomicBool::new(false));
        let clock = Clock::boot();
        let looked = clock.now();
        let this = Self {
            requests,
            answers,
            state: State::Idle,
            interval: terms.interval,
            clock,
            looked,
            failures: 0,
            left: left.clone(),
        };
        let worker = Worker::new(producer, terms.clone(), left);
        let thread = thread::Builder::new().name("campanile-transactions".into());
        // Nobody joins it: a broker that does not answer must not hold up whoever waits.
        thread.spawn(move || worker.run(taken, answered)).map_err(|error| {
            ConsumerError::kafka(format!("no thread for transactions: {error}"), None)
        })?;
        loop {
            match this.answers.recv_timeout(Duration::from_millis(20)) {
                Ok(Answer::Ended(error)) => return Err(error),
                Ok(_) => return Ok(Some(this)),
                Err(RecvTimeoutError::Timeout) if goes_on()? => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
            }
        }
    }

    /// Commits what is finished, if it is time for that: at once if this hurries.
    ///
    /// # Errors
    /// There can be no more transactions. Told once.
    pub(crate) fn poll(
        &mut self,
        hurry: bool,
        slots: Slots<'_>,
        group: Group<'_>,
    ) -> Result<(), ConsumerError> {
        let now = self.clock.now();
        match self.answers.try_recv() {
            Ok(answer) => self.answered(answer, now)?,
            Err(TryRecvError::Disconnected) if matches!(self.state, State::Busy) => {
                return self.end(panicked());
            }
            Err(_) => {}
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle if hurry || now.saturating_sub(self.looked) >= self.interval => {
                self.looked = now;
                let slots = slots();
                if Batch::is_due(&slots)
                    && let Some(group) = group()
                {
                    return self.send(Request { batch: Batch::of(&slots), group });
                }
            }
            State::Again { batch, at } if now >= at => {
                let batch = batch.ours();
                match group() {
                    _ if batch.is_empty() => {}
                    Some(group) => return self.send(Request { batch, group }),
                    None => self.state = State::Again { batch, at: now + OUTSIDE },
                }
            }
            state => self.state = state,
        }
        Ok(())
    }

    /// Commits what is finished, and waits for it; for some seconds at most.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub(crate) fn finish(
        &mut self,
        slots: Slots<'_>,
        group: Group<'_>,
    ) -> Result<(), ConsumerError> {
        let late = self.clock.now() + LAST;
        loop {
            self.poll(true, slots, group)?;
            let until = match self.state {
                State::Idle | State::Ended => return Ok(()),
                State::Busy => late,
                State::Again { at, .. } => at.min(late),
            };
            let now = self.clock.now();
            if now >= late {
                tracing::warn!("the last transaction is not committed yet");
                return Ok(());
            }
            match self.answers.recv_timeout(until.saturating_sub(now)) {
                Ok(answer) => self.answered(answer, self.clock.now())?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(panicked()),
            }
        }
    }

    fn send(&mut self, request: Request) -> Result<(), ConsumerError> {
        self.state = State::Busy;
        self.requests.send(request).or_else(|_| self.end(panicked()))
    }

    fn answered(&mut self, answer: Answer, now: Duration) -> Result<(), ConsumerError> {
        match answer {
            Answer::Ready => {}
            Answer::Committed(batch) => {
                batch.committed();
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!("transactions are committed again");
                }
                self.state = State::Idle;
            }
            Answer::Aborted(batch, error) => {
                self.failures = self.failures.saturating_add(1);
                // So that an outage does not fill a log.
                if self.failures.is_power_of_two() {
                    let times = self.failures;
                    tracing::warn!(error, times, "a transaction was aborted, to be done again");
                }
                let at = now + impatient().delay(self.failures);
                self.state = State::Again { batch, at };
            }
            Answer::Ended(error) => return self.end(error),
        }
        Ok(())
    }

    fn end(&mut self, error: ConsumerError) -> Result<(), ConsumerError> {
        self.state = State::Ended;
        Err(error)
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
