//! The thread that has the producer: it commits one batch after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::Thread;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{Producer, ThreadedProducer};

use super::batch::{Batch, Request};
use super::producer::{Deliveries, Refused};
use super::trouble::{self, Cure};
use crate::error::{ConsumerError, chain};

/// How long one call may wait for the brokers. Then it is made again, unless nobody waits any more.
const CALL: Duration = Duration::from_secs(2);

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
    pub(super) producer: ThreadedProducer<Deliveries>,
    pub(super) id: String,
    /// Nobody waits any more.
    pub(super) left: Arc<AtomicBool>,
    /// Who waits for answers.
    pub(super) wake: Thread,
}

/// Why a transaction is not committed.
enum Failure {
    Abort(KafkaError),
    End(ConsumerError),
    /// Nobody waits any more. What is open is aborted by the brokers, or by the next of this id.
    Left,
}

impl Worker {
    pub(super) fn run(self, requests: Receiver<Request>, answers: Sender<Answer>) {
        let mut answer = match self.call(|| self.producer.init_transactions(CALL)) {
            Ok(()) => Some(Answer::Ready),
            Err(failure) => self.ended(failure),
        };
        while let Some(told) = answer {
            let ended = matches!(told, Answer::Ended(_));
            let heard = answers.send(told).is_ok();
            self.wake.unpark();
            if ended || !heard {
                return;
            }
            let Ok(request) = requests.recv() else {
                return;
            };
            answer = self.commit(request);
        }
    }

    /// `None` if nobody waits any more.
    fn commit(&self, Request { batch, group }: Request) -> Option<Answer> {
        let offsets = batch.offsets();
        let span = tracing::debug_span!("transaction", partitions = offsets.count());
        let _entered = span.enter();
        let committed = self
            .call(|| self.producer.begin_transaction())
            .and_then(|()| self.send(&batch))
            .and_then(|()| {
                self.call(|| self.producer.send_offsets_to_transaction(&offsets, &group, CALL))
            })
            .and_then(|()| self.call(|| self.producer.commit_transaction(CALL)));
        match committed {
            Ok(()) => Some(Answer::Committed(batch)),
            Err(Failure::Abort(error)) => {
                match self.call(|| self.producer.abort_transaction(CALL)) {
                    Ok(()) => Some(self.aborted(batch, &error)),
                    Err(failure) => self.ended(failure),
                }
            }
            Err(failure) => self.ended(failure),
        }
    }

    /// Nothing of it is committed, and all its outputs are reported.
    fn aborted(&self, batch: Batch, error: &KafkaError) -> Answer {
        match self.producer.context().take() {
            Some(refused) if trouble::is_permanent(&refused.error) => {
                Answer::Ended(stopped(&batch, refused))
            }
            Some(Refused { topic, error, .. }) => {
                Answer::Aborted(batch, format!("topic `{topic}`: {}", chain(&error)))
            }
            None if trouble::is_permanent(error) => Answer::Ended(trouble::forbidden(error)),
            None => Answer::Aborted(batch, chain(error)),
        }
    }

    /// Hands all outputs to the producer.
    fn send(&self, batch: &Batch) -> Result<(), Failure> {
        for (number, pending) in batch.pending().enumerate() {
            for message in &pending.messages {
                let mut record = message.record(number);
                while let Err((error, same)) = self.producer.send(record) {
                    if error.rdkafka_error_code() != Some(Code::QueueFull) {
                        let (topic, refused) = (same.topic.to_owned(), error.clone());
                        self.producer.context().refuse(Refused { number, topic, error: refused });
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
                Cure::End => return Err(Failure::End(trouble::end(&self.id, error))),
            }
        }
    }

    fn ended(&self, failure: Failure) -> Option<Answer> {
        match failure {
            Failure::End(error) => Some(Answer::Ended(error)),
            // Nothing is open that could be aborted.
            Failure::Abort(error) => Some(Answer::Ended(trouble::end(&self.id, error))),
            Failure::Left => None,
        }
    }
}

/// The consumer stops at the record whose output nobody takes.
fn stopped(batch: &Batch, Refused { number, topic, error }: Refused) -> ConsumerError {
    let what = format!("topic `{topic}` does not take an output");
    match batch.pending().nth(number) {
        Some(pending) => {
            let help = "an output is refused: create its topic, allow this user to write there, raise \
                        the topic's `max.message.bytes`, or correct the handler";
            let source = format!("{what}: {}", chain(&error));
            ConsumerError::stopped(&pending.at, help, source.into())
        }
        None => ConsumerError::kafka(what, Some(error)),
    }
}
