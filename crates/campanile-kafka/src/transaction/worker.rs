//! The thread that has the producer: it commits one batch after the other.

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

/// How long one call may wait for the brokers. Then it is made again, unless nobody waits any more.
pub(super) const CALL: Duration = Duration::from_secs(2);

/// How soon it is asked again what is committed.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// How it went.
pub(super) enum Answer {
    /// The producer has its id, and no former one has.
    Ready,
    Committed(Batch),
    /// Nothing of it is committed, for this reason.
    Aborted(Batch, String),
    /// There will be no other answer.
    Ended(ConsumerError),
}

pub(super) struct Worker {
    producer: ThreadedProducer<Deliveries>,
    terms: Terms,
    clock: Clock,
    /// Nobody waits any more.
    left: Arc<AtomicBool>,
    /// Woken with each answer.
    waker: SourceWaker,
}

/// Why a transaction is not committed.
enum Failure {
    Abort(KafkaError),
    /// The producer can do nothing more.
    End(KafkaError),
    /// Nobody waits any more. What is open is aborted by the brokers, or by the next of this id.
    Left,
}

impl Worker {
    /// For who calls this, and until that is `left`.
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

    /// Takes the id. What a former producer of it has begun is committed or aborted then.
    fn begin(&self) -> Result<(), Failure> {
        self.call(|| self.producer.init_transactions(CALL))
    }

    /// `None` if nobody waits any more.
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

    /// Nothing of it is committed, and all its outputs are reported.
    ///
    /// What is sent again is sent by another producer. librdkafka (2.12) gives the numbers of what it has purged
    /// to the next messages, also where brokers have some of it and only their answer was lost: they would
    /// take those for repetitions, acknowledge them, and keep nothing.
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
                    "topic `{topic}` refuses outputs that came together: from now on each is sent \
                     alone, which is slower; set `batch.size` below its `max.message.bytes`: {}",
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

    /// The transaction was open for longer than its time, and so the brokers have aborted it. Should it
    /// have been another producer that has the id now, that one is fenced in turn, and starts again.
    fn outlived(&mut self, batch: Batch, error: &KafkaError) -> Option<Answer> {
        match self.renew(self.producer.context().alone).and_then(|()| self.is_committed(&batch)) {
            Ok(true) => Some(Answer::Committed(batch)),
            Ok(false) => Some(Answer::Aborted(batch, chain(error))),
            Err(failure) => self.ended(failure),
        }
    }

    /// Goes on with another producer of the same id.
    fn renew(&mut self, alone: bool) -> Result<(), Failure> {
        self.producer = self.terms.producer(alone).map_err(Failure::End)?;
        self.begin()
    }

    /// Whether the answer to its commit is all that was lost.
    fn is_committed(&self, batch: &Batch) -> Result<bool, Failure> {
        let offsets = batch.offsets();
        let group = Group::connect(&self.terms.consumer).map_err(Failure::End)?;
        loop {
            match group.committed(&offsets, CALL) {
                Ok(committed) => return Ok(group::covers(&committed, &offsets)),
                Err(_) if self.left.load(Ordering::Acquire) => return Err(Failure::Left),
                Err(error) if trouble::is_permanent(&error) => return Err(Failure::End(error)),
                Err(error) => {
                    tracing::debug!(%error, "the brokers do not say what is committed: asked again");
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
                    // Until some of them are acknowledged.
                    let _ = self.producer.flush(Duration::from_millis(10));
                    record = same;
                }
            }
        }
        Ok(())
    }

    /// Calls until it is known how that came out.
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
                        tracing::warn!(%error, "the brokers do not answer: asked again");
                    }
                }
                Cure::Abort => return Err(Failure::Abort(error)),
                Cure::End => return Err(Failure::End(error)),
            }
        }
    }

    fn ended(&self, failure: Failure) -> Option<Answer> {
        match failure {
            // Nothing is open that could be aborted.
            Failure::End(error) | Failure::Abort(error) => {
                Some(Answer::Ended(trouble::end(&self.terms.id, error)))
            }
            Failure::Left => None,
        }
    }
}

/// The consumer stops at the record whose output nobody takes.
fn stopped(batch: &Batch, Refused { number, topic, error, .. }: Refused) -> ConsumerError {
    let what = format!("topic `{topic}` does not take an output");
    match batch.pending().nth(number) {
        Some(pending) => {
            let help = "an output is refused: create its topic, allow this user to write there, raise \
                        the topic's `max.message.bytes`, or correct the handler. Behind the idempotency \
                        layer that alone does not help, for the outputs are kept with the key: reopen it \
                        (`Store::redrive`, by force), after which the handler runs again";
            let source = format!("{what}: {}", chain(&error));
            ConsumerError::stopped(&pending.at, help, source.into())
        }
        None => ConsumerError::kafka(what, Some(error)),
    }
}
