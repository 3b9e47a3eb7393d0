//! The thread that owns the producer and commits one transaction after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use campanile_core::{BoxError, Clock};
use campanile_driver::ConsumerError;
use campanile_driver::private::{chain, log_stop};
use campanile_driver::source::Assignment;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{Producer, ThreadedProducer};

use super::content::{CommitRequest, TransactionContent};
use super::context::{Deliveries, RefusedOutput};
use super::error::{self, Recovery};
use super::group::GroupOffsets;
use super::settings::TransactionSettings;
use crate::log::LogLimit;
use crate::native::SourceWaker;
use crate::publish;
use crate::publish::ProducerMetrics;
use crate::topic_ids::check_topics;
use crate::workarounds::Reconnect;

/// The timeout of one call to the brokers. A call that times out is repeated, unless no caller waits
/// for its result any more.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay before a failed request for committed offsets, or for the ids of topics, is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The worker's answer.
pub(super) enum WorkerResponse {
    /// The producer has acquired its id, and any earlier producer has lost it.
    Ready,
    /// The content is committed.
    Committed(TransactionContent),
    /// Nothing of the content is committed, for this reason.
    Aborted(TransactionContent, String),
    /// No further transaction is possible. This is the last answer.
    Ended(ConsumerError),
}

pub(super) struct Worker {
    producer: ThreadedProducer<Deliveries>,
    settings: TransactionSettings,
    clock: Clock,
    /// Set when no caller waits for answers any more.
    abandoned: Arc<AtomicBool>,
    /// Woken with each answer.
    waker: SourceWaker,
    reconnect: Reconnect,
    log_limit: LogLimit,
    metrics: ProducerMetrics,
    /// The number of requests for the ids of topics that have failed: another broker is asked after each.
    failed_checks: usize,
}

/// The reason why a transaction is not committed.
enum Failure {
    /// The transaction must be aborted.
    Abort(KafkaError),
    /// The producer can do nothing more.
    Fatal(KafkaError),
    /// No caller waits any more. The brokers, or the next producer with this id, abort the open
    /// transaction.
    Abandoned,
}

impl Worker {
    /// Creates a worker, which runs until `abandoned` is set.
    pub(super) fn new(
        producer: ThreadedProducer<Deliveries>,
        settings: TransactionSettings,
        abandoned: Arc<AtomicBool>,
        waker: SourceWaker,
    ) -> Self {
        let (reconnect, log_limit) = (Reconnect::default(), LogLimit::default());
        let (clock, metrics) = (Clock::boot(), ProducerMetrics::new());
        let failed_checks = 0;
        Self {
            producer,
            settings,
            clock,
            abandoned,
            waker,
            reconnect,
            log_limit,
            metrics,
            failed_checks,
        }
    }

    pub(super) fn run(
        mut self,
        requests: Receiver<CommitRequest>,
        responses: Sender<WorkerResponse>,
    ) {
        let mut next = match self.init_producer() {
            Ok(()) => Some(WorkerResponse::Ready),
            Err(failure) => self.end_response(failure),
        };
        while let Some(response) = next {
            let ended = matches!(response, WorkerResponse::Ended(_));
            let is_received = responses.send(response).is_ok();
            self.waker.wake();
            if ended || !is_received {
                return;
            }
            let Ok(request) = requests.recv() else {
                return;
            };
            next = self.commit(request);
        }
    }

    /// Acquires the transactional id. The transaction of an earlier producer with this id is committed
    /// or aborted by then.
    fn init_producer(&self) -> Result<(), Failure> {
        self.call("init_transactions", || self.producer.init_transactions(CALL_TIMEOUT))
    }

    /// Commits a transaction. Returns `None` if no caller waits for the answer any more.
    fn commit(
        &mut self,
        CommitRequest { mut content, group }: CommitRequest,
    ) -> Option<WorkerResponse> {
        // Everything in the content was read before this. What was read from another topic is dropped, as after
        // a lost assignment.
        if let Err(failure) = self.check_topics(&content.partitions()) {
            return self.end_response(failure);
        }
        content.retain_same_log();
        if content.is_empty() {
            return Some(WorkerResponse::Committed(content));
        }
        let offsets = content.offsets();
        let span = tracing::debug_span!("transaction", partitions = offsets.count());
        let _entered = span.enter();
        let start = self.clock.now();
        let committed = self
            .call("begin_transaction", || self.producer.begin_transaction())
            .and_then(|()| self.send(&content))
            .and_then(|()| {
                self.call("send_offsets_to_transaction", || {
                    self.producer.send_offsets_to_transaction(&offsets, &group, CALL_TIMEOUT)
                })
            })
            .and_then(|()| {
                self.call("commit_transaction", || self.producer.commit_transaction(CALL_TIMEOUT))
            });
        let (failure, cause) = match committed {
            Ok(()) => return Some(WorkerResponse::Committed(content)),
            Err(Failure::Abort(error)) => {
                let abort = || self.producer.abort_transaction(CALL_TIMEOUT);
                match self.call("abort_transaction", abort) {
                    Ok(()) => return self.handle_abort(content, &error),
                    Err(failure) => (failure, Some(error)),
                }
            }
            Err(failure) => (failure, None),
        };
        let is_past_timeout = self.clock.now().saturating_sub(start) >= self.settings.timeout;
        match failure {
            Failure::Fatal(error) | Failure::Abort(error)
                if error::is_not_open(&error)
                    || is_past_timeout && error::may_be_timeout(&error) =>
            {
                self.handle_ended(content, cause.as_ref().unwrap_or(&error))
            }
            failure => self.end_response(failure),
        }
    }

    /// Handles an aborted transaction: nothing of its content is committed, and the delivery of all outputs
    /// is reported.
    ///
    /// A new producer sends the content again. librdkafka (2.12) reuses the sequence numbers of purged
    /// messages for the next messages, even if brokers have stored some of the purged ones and only their
    /// response was lost. The brokers would consider the next messages duplicates, acknowledge them, and
    /// store nothing.
    fn handle_abort(
        &mut self,
        content: TransactionContent,
        error: &KafkaError,
    ) -> Option<WorkerResponse> {
        let mut unbatched = self.producer.context().unbatched;
        let reason = match self.producer.context().take() {
            Some(refused) if error::is_permanent(&refused.error) => {
                if refused.unbatched || !error::may_be_batch_error(&refused.error) {
                    return Some(WorkerResponse::Ended(stopped_error(&content, refused)));
                }
                unbatched = true;
                let RefusedOutput { topic, error, .. } = refused;
                format!(
                    "topic `{topic}` refuses outputs that are sent together: each is sent alone from \
                     now on, which is slower; set `content.size` below its `max.message.bytes`: {}",
                    chain(&error)
                )
            }
            Some(RefusedOutput { topic, error, .. }) => {
                format!("topic `{topic}`: {}", chain(&error))
            }
            // A topic that is consumed, and was deleted, is no reason: its partitions will be revoked.
            None if error::is_permission(error) => {
                return Some(WorkerResponse::Ended(error::permission_error(error)));
            }
            None => chain(error),
        };
        match self.replace_producer(unbatched) {
            Ok(()) => Some(WorkerResponse::Aborted(content, reason)),
            Err(failure) => self.end_response(failure),
        }
    }

    /// Handles a transaction that is not open in the brokers: they never knew of it, or have ended it, such
    /// as when it exceeded its timeout. If another producer has acquired the id instead, after that
    /// timeout, that producer is fenced in turn, and has to be restarted. `error`: why it was to be aborted,
    /// or what says that it is not open.
    fn handle_ended(
        &mut self,
        content: TransactionContent,
        error: &KafkaError,
    ) -> Option<WorkerResponse> {
        match self
            .replace_producer(self.producer.context().unbatched)
            .and_then(|()| self.is_committed(&content))
        {
            Ok(true) => Some(WorkerResponse::Committed(content)),
            Ok(false) if error::is_permission(error) => {
                Some(WorkerResponse::Ended(error::permission_error(error)))
            }
            Ok(false) => Some(WorkerResponse::Aborted(content, chain(error))),
            Err(failure) => self.end_response(failure),
        }
    }

    /// Replaces the producer by a new one with the same id.
    fn replace_producer(&mut self, unbatched: bool) -> Result<(), Failure> {
        self.producer = self.settings.producer(unbatched).map_err(Failure::Fatal)?;
        self.init_producer()
    }

    /// Checks whether the content is committed, and only the response to its commit was lost.
    fn is_committed(&self, content: &TransactionContent) -> Result<bool, Failure> {
        let offsets = content.offsets();
        let group = GroupOffsets::connect(&self.settings.consumer).map_err(Failure::Fatal)?;
        loop {
            match group.committed(&offsets, CALL_TIMEOUT) {
                Ok(committed) => return Ok(content.is_committed(&committed)),
                Err(_) if self.abandoned.load(Ordering::Acquire) => return Err(Failure::Abandoned),
                Err(error) if error::is_permanent(&error) => return Err(Failure::Fatal(error)),
                Err(error) => {
                    tracing::debug!(%error, "failed to fetch committed offsets; retrying");
                    thread::sleep(RETRY_DELAY);
                }
            }
        }
    }

    /// Marks the partitions whose topics were recreated.
    fn check_topics(&mut self, partitions: &[Arc<Assignment>]) -> Result<(), Failure> {
        loop {
            match check_topics(self.producer.client(), partitions, self.failed_checks) {
                Ok(()) => return Ok(()),
                Err(_) if self.abandoned.load(Ordering::Acquire) => return Err(Failure::Abandoned),
                Err(error) => {
                    self.failed_checks += 1;
                    self.handle_unanswered("describe_topics", &error);
                    thread::sleep(RETRY_DELAY);
                }
            }
        }
    }

    /// Hands all outputs to the producer.
    fn send(&self, content: &TransactionContent) -> Result<(), Failure> {
        for (record_index, outputs) in content.outputs().enumerate() {
            for message in &outputs.messages {
                let mut record = publish::record(message, record_index);
                let mut is_queue_empty = false;
                while let Err((error, same)) = self.producer.send(record) {
                    // The transaction has failed meanwhile, and the next call returns the reason.
                    if error.rdkafka_error_code() == Some(Code::State) {
                        return Ok(());
                    }
                    // An output that does not fit into an empty queue never fits.
                    if error.rdkafka_error_code() != Some(Code::QueueFull) || is_queue_empty {
                        let topic = same.topic.to_owned();
                        let refused = RefusedOutput {
                            record_index,
                            topic,
                            error: error.clone(),
                            unbatched: true,
                        };
                        self.producer.context().record_refusal(refused);
                        return Err(Failure::Abort(error));
                    }
                    if self.abandoned.load(Ordering::Acquire) {
                        return Err(Failure::Abandoned);
                    }
                    // Waits until some of the queued outputs are acknowledged.
                    let _ = self.producer.flush(Duration::from_millis(10));
                    // Only this thread sends, so an empty queue stays empty until the next attempt.
                    is_queue_empty = self.producer.in_flight_count() == 0;
                    record = same;
                }
                self.metrics.count_sent();
            }
        }
        Ok(())
    }

    /// Repeats a call until its result is known.
    fn call(
        &self,
        name: &'static str,
        call: impl Fn() -> Result<(), KafkaError>,
    ) -> Result<(), Failure> {
        loop {
            let error = match call() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match Recovery::of(&error) {
                Recovery::Retry if self.abandoned.load(Ordering::Acquire) => {
                    return Err(Failure::Abandoned);
                }
                Recovery::Retry => self.handle_unanswered(name, &error),
                Recovery::Abort => return Err(Failure::Abort(error)),
                Recovery::Fatal => return Err(Failure::Fatal(error)),
            }
        }
    }

    /// Reports a call that is repeated, and reconnects if no broker is known any more.
    fn handle_unanswered(&self, name: &'static str, error: &KafkaError) {
        self.reconnect.check(self.producer.client(), self.settings.brokers());
        if let Some(suppressed) = self.log_limit.allow(name) {
            tracing::warn!(
                call = name,
                brokers = self.settings.brokers(),
                error = chain(error),
                suppressed,
                "the brokers did not answer a call about a transaction; repeating it until they do"
            );
        }
    }

    fn end_response(&self, failure: Failure) -> Option<WorkerResponse> {
        match failure {
            // No transaction is open that could be aborted.
            Failure::Fatal(error) | Failure::Abort(error) => {
                Some(WorkerResponse::Ended(error::fatal_error(&self.settings.id, error)))
            }
            Failure::Abandoned => None,
        }
    }
}

/// Creates the error that stops the consumer at the record of the refused output.
fn stopped_error(
    content: &TransactionContent,
    RefusedOutput { record_index, topic, error, .. }: RefusedOutput,
) -> ConsumerError {
    let what = format!("topic `{topic}` refused an output");
    match content.outputs().nth(record_index) {
        Some(outputs) => {
            let help = "an output was refused: create its topic, allow the user `Write` on the topic, raise \
                        the topic's `max.message.bytes` or the producer's \
                        `queue.buffering.max.kbytes`, or fix the handler. Behind the idempotency \
                        layer a fixed handler is not enough, because the key's entry stores the \
                        outputs: reopen the key (`Store::redrive` with `force`), after which the \
                        handler runs again";
            let source = BoxError::from(format!("{what}: {}", chain(&error)));
            log_stop("consumer", &outputs.at, &outputs.at, None, help, &*source);
            ConsumerError::stopped(&outputs.at, help, source)
        }
        None => ConsumerError::kafka(what, Some(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use campanile_test::MockKafka;
    use rdkafka::ClientConfig;
    use rdkafka::config::FromClientConfigAndContext;

    use super::*;
    use crate::client::ClientSettings;
    use crate::source::tests::assignment;
    use crate::transaction::Transactions;

    /// Creates a worker whose producer knows no brokers, and has had its time to find them by itself.
    async fn disconnected(kafka: &MockKafka) -> Worker {
        let consumer = ClientSettings::from(kafka.consumer_config("billing"));
        let settings = Transactions::new("billing").checked(&consumer).unwrap();
        // A producer that cannot find the brokers by itself.
        let mut nowhere = ClientConfig::new();
        nowhere.set("bootstrap.servers", "127.0.0.1:1").set("transactional.id", "billing");
        let context = Deliveries::new(false, None, LogLimit::default());
        let producer = ThreadedProducer::from_config_and_context(&nowhere, context).unwrap();
        let worker = Worker::new(producer, settings, Arc::default(), SourceWaker::default());
        worker.reconnect.check(worker.producer.client(), worker.settings.brokers());
        tokio::time::advance(Duration::from_secs(10)).await;
        worker
    }

    #[tokio::test(start_paused = true)]
    async fn producer_that_knows_no_brokers_is_reconnected() {
        let kafka = MockKafka::start(1).unwrap();
        let worker = disconnected(&kafka).await;
        let attempts = Cell::new(0);
        let init = || {
            attempts.set(attempts.get() + 1);
            match attempts.get() {
                1..30 => worker.producer.init_transactions(CALL_TIMEOUT),
                _ => Err(KafkaError::Canceled),
            }
        };
        assert!(worker.call("init_transactions", init).is_ok());
    }
    #[tokio::test(start_paused = true)]
    async fn producer_that_knows_no_brokers_is_reconnected_to_check_topics() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        let mut worker = disconnected(&kafka).await;
        let abandoned = worker.abandoned.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(60));
            abandoned.store(true, Ordering::Release);
        });
        let partition = assignment("payments", 0);
        partition.log_id.get_or_init(|| "of another topic".into());
        assert!(worker.check_topics(std::slice::from_ref(&partition)).is_ok());
        assert!(partition.is_log_lost());
    }
}
