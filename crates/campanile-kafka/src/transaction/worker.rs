//! The thread that owns the producer and commits one batch after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{Producer, ThreadedProducer};

use super::batch::{Batch, Request};
use super::group::{self, Group};
use super::producer::{Deliveries, Refused};
use super::settings::Terms;
use super::trouble::{self, Cure};
use crate::error::{ConsumerError, chain};
use crate::kafka::SourceWaker;
use crate::publish;

/// The timeout of one call to the brokers. A call that times out is repeated, unless no caller waits
/// for its result any more.
pub(super) const CALL: Duration = Duration::from_secs(2);

/// The delay before a failed request for committed offsets is repeated.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The worker's answer.
pub(super) enum Answer {
    /// The producer has acquired its id, and any earlier producer has lost it.
    Ready,
    /// The batch is committed.
    Committed(Batch),
    /// Nothing of the batch is committed, for this reason.
    Aborted(Batch, String),
    /// No further transaction is possible. This is the last answer.
    Ended(ConsumerError),
}

pub(super) struct Worker {
    producer: ThreadedProducer<Deliveries>,
    terms: Terms,
    clock: Clock,
    /// Set when no caller waits for answers any more.
    left: Arc<AtomicBool>,
    /// Woken with each answer.
    waker: SourceWaker,
}

/// The reason why a transaction is not committed.
enum Failure {
    /// The transaction must be aborted.
    Abort(KafkaError),
    /// The producer can do nothing more.
    End(KafkaError),
    /// No caller waits any more. The brokers, or the next producer with this id, abort the open
    /// transaction.
    Left,
}

impl Worker {
    /// Creates a worker, which runs until `left` is set.
    pub(super) fn new(
        producer: ThreadedProducer<Deliveries>,
        terms: Terms,
        left: Arc<AtomicBool>,
        waker: SourceWaker,
    ) -> Self {
        Self { producer, terms, clock: Clock::boot(), left, waker }
    }

    pub(super) fn run(mut self, requests: Receiver<Request>, answers: Sender<Answer>) {
        let mut answer = match self.begin() {
            Ok(()) => Some(Answer::Ready),
            Err(failure) => self.ended(failure),
        };
        while let Some(told) = answer {
            let ended = matches!(told, Answer::Ended(_));
            let heard = answers.send(told).is_ok();
            self.waker.wake();
            if ended || !heard {
                return;
            }
            let Ok(request) = requests.recv() else {
                return;
            };
            answer = self.commit(request);
        }
    }

    /// Acquires the transactional id. The transaction of an earlier producer with this id is committed
    /// or aborted by then.
    fn begin(&self) -> Result<(), Failure> {
        self.call(|| self.producer.init_transactions(CALL))
    }

    /// Commits a batch. Returns `None` if no caller waits for the answer any more.
    fn commit(&mut self, Request { batch, group }: Request) -> Option<Answer> {
        let offsets = batch.offsets();
        let span = tracing::debug_span!("transaction", partitions = offsets.count());
        let _entered = span.enter();
        let start = self.clock.now();
        let committed = self
            .call(|| self.producer.begin_transaction())
            .and_then(|()| self.send(&batch))
            .and_then(|()| {
                self.call(|| self.producer.send_offsets_to_transaction(&offsets, &group, CALL))
            })
            .and_then(|()| self.call(|| self.producer.commit_transaction(CALL)));
        let failure = match committed {
            Ok(()) => return Some(Answer::Committed(batch)),
            Err(Failure::Abort(error)) => {
                match self.call(|| self.producer.abort_transaction(CALL)) {
                    Ok(()) => return self.aborted(batch, &error),
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        match failure {
            Failure::End(error) | Failure::Abort(error)
                if trouble::is_outlived(&error)
                    && self.clock.now().saturating_sub(start) >= self.terms.timeout =>
            {
                self.outlived(batch, &error)
            }
            failure => self.ended(failure),
        }
    }

    /// Handles an aborted transaction: nothing of its batch is committed, and the delivery of all outputs
    /// is reported.
    ///
    /// A new producer sends the batch again. librdkafka (2.12) reuses the sequence numbers of purged
    /// messages for the next messages, even if brokers have stored some of the purged ones and only their
    /// response was lost. The brokers would consider the next messages duplicates, acknowledge them, and
    /// store nothing.
    fn aborted(&mut self, batch: Batch, error: &KafkaError) -> Option<Answer> {
        let mut alone = self.producer.context().alone;
        let told = match self.producer.context().take() {
            Some(refused) if trouble::is_permanent(&refused.error) => {
                if refused.alone || !trouble::is_shared(&refused.error) {
                    return Some(Answer::Ended(stopped(&batch, refused)));
                }
                alone = true;
                let Refused { topic, error, .. } = refused;
                format!(
                    "topic `{topic}` refuses outputs that are sent together: each is sent alone from \
                     now on, which is slower; set `batch.size` below its `max.message.bytes`: {}",
                    chain(&error)
                )
            }
            Some(Refused { topic, error, .. }) => format!("topic `{topic}`: {}", chain(&error)),
            None if trouble::is_permanent(error) => {
                return Some(Answer::Ended(trouble::forbidden(error)));
            }
            None => chain(error),
        };
        match self.renew(alone) {
            Ok(()) => Some(Answer::Aborted(batch, told)),
            Err(failure) => self.ended(failure),
        }
    }

    /// Handles a transaction that was open for longer than its timeout, so that the brokers have aborted
    /// it. If another producer has acquired the id instead, that producer is fenced in turn, and has to
    /// be restarted.
    fn outlived(&mut self, batch: Batch, error: &KafkaError) -> Option<Answer> {
        match self.renew(self.producer.context().alone).and_then(|()| self.is_committed(&batch)) {
            Ok(true) => Some(Answer::Committed(batch)),
            Ok(false) => Some(Answer::Aborted(batch, chain(error))),
            Err(failure) => self.ended(failure),
        }
    }

    /// Replaces the producer by a new one with the same id.
    fn renew(&mut self, alone: bool) -> Result<(), Failure> {
        self.producer = self.terms.producer(alone).map_err(Failure::End)?;
        self.begin()
    }

    /// Checks whether the batch is committed, and only the response to its commit was lost.
    fn is_committed(&self, batch: &Batch) -> Result<bool, Failure> {
        let offsets = batch.offsets();
        let group = Group::connect(&self.terms.consumer).map_err(Failure::End)?;
        loop {
            match group.committed(&offsets, CALL) {
                Ok(committed) => return Ok(group::covers(&committed, &offsets)),
                Err(_) if self.left.load(Ordering::Acquire) => return Err(Failure::Left),
                Err(error) if trouble::is_permanent(&error) => return Err(Failure::End(error)),
                Err(error) => {
                    tracing::debug!(%error, "failed to fetch committed offsets; retrying");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Hands all outputs to the producer.
    fn send(&self, batch: &Batch) -> Result<(), Failure> {
        for (number, pending) in batch.pending().enumerate() {
            for message in &pending.messages {
                let mut record = publish::record(message, number);
                while let Err((error, same)) = self.producer.send(record) {
                    if error.rdkafka_error_code() != Some(Code::QueueFull) {
                        let topic = same.topic.to_owned();
                        let refused = Refused { number, topic, error: error.clone(), alone: true };
                        self.producer.context().refuse(refused);
                        return Err(Failure::Abort(error));
                    }
                    if self.left.load(Ordering::Acquire) {
                        return Err(Failure::Left);
                    }
                    // Waits until some of the queued outputs are acknowledged.
                    let _ = self.producer.flush(Duration::from_millis(10));
                    record = same;
                }
            }
        }
        Ok(())
    }

    /// Repeats a call until its result is known.
    fn call(&self, call: impl Fn() -> Result<(), KafkaError>) -> Result<(), Failure> {
        let mut told = false;
        loop {
            let error = match call() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match Cure::of(&error) {
                Cure::Again if self.left.load(Ordering::Acquire) => return Err(Failure::Left),
                Cure::Again => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "no response from the brokers; retrying");
                    }
                }
                Cure::Abort => return Err(Failure::Abort(error)),
                Cure::End => return Err(Failure::End(error)),
            }
        }
    }

    fn ended(&self, failure: Failure) -> Option<Answer> {
        match failure {
            // No transaction is open that could be aborted.
            Failure::End(error) | Failure::Abort(error) => {
                Some(Answer::Ended(trouble::end(&self.terms.id, error)))
            }
            Failure::Left => None,
        }
    }
}

/// Creates the error that stops the consumer at the record of the refused output.
fn stopped(batch: &Batch, Refused { number, topic, error, .. }: Refused) -> ConsumerError {
    let what = format!("topic `{topic}` refused an output");
    match batch.pending().nth(number) {
        Some(pending) => {
            let help = "an output was refused: create its topic, allow this user to write to it, raise \
                        the topic's `max.message.bytes`, or fix the handler. Behind the idempotency \
                        layer a fixed handler is not enough, because the key's entry stores the \
                        outputs: reopen the key (`Store::redrive` with `force`), after which the \
                        handler runs again";
            let source = format!("{what}: {}", chain(&error));
            ConsumerError::stopped(&pending.at, help, source.into())
        }
        None => ConsumerError::kafka(what, Some(error)),
    }
}
