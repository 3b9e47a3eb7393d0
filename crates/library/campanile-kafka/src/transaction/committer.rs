//! The side of transactions that runs on the driver's thread: commits them one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use campanile_driver::private::server_backoff;
use campanile_driver::source::{Assignment, CommitStart};
use campanile_driver::{ConsumerError, SourceContext};
use rdkafka::consumer::ConsumerGroupMetadata;

use super::TransactionSettings;
use super::content::{CommitRequest, TransactionContent};
use super::worker::{Worker, WorkerResponse};
use crate::config::config_error;
use crate::native::SourceWaker;

/// Commits transactions, one after the other.
pub(crate) struct Committer {
    requests: Sender<CommitRequest>,
    responses: Receiver<WorkerResponse>,
    state: CommitterState,
    clock: Clock,
    /// The number of consecutive transactions that were aborted.
    failures: u32,
    /// Set when no caller waits for the worker's answers any more.
    abandoned: Arc<AtomicBool>,
}

enum CommitterState {
    /// Nothing is pending.
    Idle,
    /// The worker is committing a transaction.
    InFlight,
    /// A transaction was not committed, and is repeated at this time.
    Retry { content: TransactionContent, at: Duration },
    /// No further transaction is possible.
    Ended,
}

/// The result of the transaction in flight.
pub(crate) enum TransactionResult {
    /// There is no result yet, or no transaction is in flight.
    Pending,
    /// The transaction is committed.
    Committed,
    /// The transaction was aborted; its content is kept, and sent again.
    Aborted,
    /// No further transaction is possible. Returned once.
    Ended(ConsumerError),
}

impl Committer {
    /// Starts the worker, and waits until it has acquired the transactional id. Returns `None` at a
    /// shutdown.
    pub(crate) fn start(
        settings: &TransactionSettings,
        start_timeout: Duration,
        driver: &SourceContext,
        waker: SourceWaker,
    ) -> Result<Option<Self>, ConsumerError> {
        let producer = settings.producer(false);
        let producer = producer.map_err(|error| ConsumerError::Config(config_error(error)))?;
        let (requests, request_receiver) = channel();
        let (response_sender, responses) = channel();
        let abandoned = Arc::new(AtomicBool::new(false));
        let clock = Clock::boot();
        let start = clock.now();
        let state = CommitterState::Idle;
        let this =
            Self { requests, responses, state, clock, failures: 0, abandoned: abandoned.clone() };
        let worker = Worker::new(producer, settings.clone(), abandoned, waker);
        let thread = thread::Builder::new().name("campanile-transactions".into());
        // The thread is never joined: a broker that does not respond must not delay the shutdown.
        thread.spawn(move || worker.run(request_receiver, response_sender)).map_err(|error| {
            ConsumerError::kafka(format!("failed to spawn a thread: {error}"), None)
        })?;
        loop {
            match this.responses.recv_timeout(Duration::from_millis(20)) {
                Ok(WorkerResponse::Ended(error)) => return Err(error),
                Ok(_) => return Ok(Some(this)),
                Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
                Err(RecvTimeoutError::Timeout) if driver.is_shutting_down() => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            driver.report_progress();
            if this.clock.now() - start >= start_timeout {
                let what = format!(
                    "timed out waiting for the transaction coordinator after {:?}",
                    start_timeout
                );
                return Err(ConsumerError::kafka(what, None));
            }
        }
    }

    /// Polls the transaction in flight for its result.
    pub(crate) fn poll(&mut self) -> TransactionResult {
        match self.responses.try_recv() {
            Ok(response) => self.on_response(response),
            Err(TryRecvError::Disconnected) if matches!(self.state, CommitterState::InFlight) => {
                self.state = CommitterState::Ended;
                TransactionResult::Ended(panicked())
            }
            Err(_) => TransactionResult::Pending,
        }
    }

    /// Starts a transaction with the finished records of these partitions, or retries an aborted one.
    ///
    /// `group` gets the current generation of the group: `None` if this consumer is not a member.
    pub(crate) fn commit(
        &mut self,
        partitions: &[Arc<Assignment>],
        group: impl FnOnce() -> Option<ConsumerGroupMetadata>,
    ) -> CommitStart {
        let content = match std::mem::replace(&mut self.state, CommitterState::Idle) {
            CommitterState::Idle if TransactionContent::has_uncommitted(partitions) => {
                TransactionContent::take_from(partitions)
            }
            CommitterState::Retry { content, at } if self.clock.now() >= at => {
                content.retain_current()
            }
            state => {
                let start = match state {
                    CommitterState::InFlight => CommitStart::Started,
                    CommitterState::Ended => CommitStart::Never,
                    CommitterState::Idle | CommitterState::Retry { .. } => CommitStart::NotNow,
                };
                self.state = state;
                return start;
            }
        };
        if content.is_empty() {
            return CommitStart::NotNow;
        }
        let Some(group) = group() else {
            self.state = CommitterState::Retry { content, at: self.clock.now() };
            return CommitStart::NotNow;
        };
        self.state = CommitterState::InFlight;
        // Fails only if the worker has panicked, which the next poll reports.
        let _ = self.requests.send(CommitRequest { content, group });
        CommitStart::Started
    }

    fn on_response(&mut self, response: WorkerResponse) -> TransactionResult {
        match response {
            WorkerResponse::Ready => TransactionResult::Pending,
            WorkerResponse::Committed(content) => {
                content.mark_committed();
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!("transaction committed again after aborts");
                }
                self.state = CommitterState::Idle;
                TransactionResult::Committed
            }
            WorkerResponse::Aborted(content, error) => {
                self.failures = self.failures.saturating_add(1);
                // Rate-limits the event, so that an outage does not fill the log.
                if self.failures.is_power_of_two() {
                    let times = self.failures;
                    tracing::warn!(error, times, "transaction aborted; retrying");
                }
                let at = self.clock.now() + server_backoff().delay(self.failures);
                self.state = CommitterState::Retry { content, at };
                TransactionResult::Aborted
            }
            WorkerResponse::Ended(error) => {
                self.state = CommitterState::Ended;
                TransactionResult::Ended(error)
            }
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

fn panicked() -> ConsumerError {
    ConsumerError::kafka("the transaction worker's thread has panicked", None)
}
