//! What librdkafka calls back, on the thread that polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::mpsc::UnboundedSender;

use super::assignment::{self, Assignment, Held};
use super::commit::{self, Failure};
use super::control::Control;
use super::native::fetched::Fetched;
use super::{Event, transact};
use crate::retry_topics::Rungs;
use crate::slot::Slot;
use crate::transaction::Transactor;
use crate::vitals::Vitals;
use crate::watch::{Watch, looking};

pub(super) struct IntakeContext {
    /// Locked by the thread that polls and its callbacks, never while it polls.
    assignment: Mutex<Assignment>,
    events: UnboundedSender<Event>,
    fetched: Arc<Fetched>,
    revoke_timeout: Duration,
    vitals: Arc<Vitals>,
    watch: Arc<Watch>,
    /// The text that came with the last error.
    reason: Mutex<Option<String>>,
    /// Where offsets are committed in transactions.
    pub(super) transactor: OnceLock<Mutex<Transactor>>,
    /// Whether the last commit failed: so that an outage is told once.
    commits_fail: AtomicBool,
}

impl IntakeContext {
    pub(super) fn new(
        events: UnboundedSender<Event>,
        fetched: Arc<Fetched>,
        revoke_timeout: Duration,
        rungs: Rungs,
        vitals: Arc<Vitals>,
        control: &Control,
    ) -> Self {
        Self {
            assignment: Mutex::new(Assignment::new(rungs, control.total.clone())),
            events,
            fetched,
            revoke_timeout,
            vitals,
            watch: control.watch.clone(),
            reason: Mutex::default(),
            transactor: OnceLock::new(),
            commits_fail: AtomicBool::new(false),
        }
    }

    pub(super) fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn transactor(&self) -> Option<MutexGuard<'_, Transactor>> {
        Some(self.transactor.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn slot(&self, topic: &str, partition: i32) -> Option<Arc<Slot>> {
        self.assignment().slot(topic, partition).cloned()
    }

    /// Tells the dispatcher. It may be gone: then there is nobody to tell.
    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    pub(super) fn take_reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes down a commit's end, and tells when commits begin to fail and when they go again.
    pub(super) fn commit_ended(&self, result: Result<(), KafkaError>) {
        match result {
            Ok(()) => {
                if self.commits_fail.swap(false, Ordering::Relaxed) {
                    tracing::info!("offsets are committed again");
                }
            }
            Err(error) => match Failure::of(&error) {
                Failure::Overtaken => tracing::debug!(%error, "a commit was overtaken"),
                failure => {
                    if !self.commits_fail.swap(true, Ordering::Relaxed) {
                        let refused = failure == Failure::Refused;
                        tracing::warn!(%error, refused, "offsets are not committed");
                    }
                }
            },
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        let slots = self.assignment().assign(partitions);
        for slot in &slots {
            self.fetched.take_in(consumer, &slot.topic, slot.partition);
        }
        self.vitals.assign(&slots);
        // A cooperative rebalance that adds nothing is one, too.
        if !slots.is_empty() {
            tracing::info!(partitions = %names(slots.iter().map(|slot| &**slot)), "assigned");
        }
        for slot in slots {
            self.tell(Event::Assigned(slot));
        }
    }

    /// Waits until the dispatcher has finished or let go what it has of these partitions, and commits
    /// what was finished.
    fn revoke(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        let lost = consumer.assignment_lost();
        let mut held = self.assignment().revoke(partitions);
        self.vitals.revoke(lost);
        if held.is_empty() {
            return;
        }
        tracing::info!(partitions = %names(held.iter().map(|held| &*held.slot)), lost, "revoked");
        let paused = assignment::list(held.iter().filter(|h| h.paused).map(|h| &*h.slot));
        // Otherwise a partition that comes back to this consumer would still be paused.
        if let Err(error) = consumer.resume(&paused) {
            tracing::warn!(%error, "partitions that are revoked stay paused");
        }
        let (done, ended) = sync_channel(0);
        let slots = held.iter().map(|held| held.slot.id).collect();
        self.tell(Event::Revoked { slots, lost, done });
        looking(&self.watch, || {
            // Ends when the dispatcher drops `done`, as it does when there is no dispatcher any more.
            if ended.recv_timeout(self.revoke_timeout) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("the runtime is too busy to let go of revoked partitions");
            }
            // It may have been lost meanwhile.
            if !consumer.assignment_lost() {
                self.commit_now(consumer, &mut held);
            }
        });
        // What of it is in no transaction by now is the next owner's.
        held.iter().for_each(|held| held.slot.outbox.close());
    }

    /// Commits what is not yet acknowledged, and waits for the answer.
    pub(super) fn commit_now<'a>(
        &self,
        consumer: &BaseConsumer<Self>,
        held: impl IntoIterator<Item = &'a mut Held>,
    ) {
        let mut held: Vec<&mut Held> = held.into_iter().collect();
        if transact::end(self, consumer, &held) {
            return;
        }
        let Some(offsets) = commit::unacknowledged(&mut held) else {
            return;
        };
        let span = tracing::debug_span!("commit", partitions = offsets.count());
        let result = span.in_scope(|| consumer.commit(&offsets, CommitMode::Sync));
        if result.is_ok() {
            held.iter_mut().for_each(|held| held.acknowledged = held.sent);
        }
        self.commit_ended(result);
    }
}

impl ConsumerContext for IntakeContext {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => self.assign(consumer, partitions),
            Rebalance::Revoke(partitions) => self.revoke(consumer, partitions),
            Rebalance::Error(error) => tracing::warn!(%error, "rebalance"),
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        let ended = commit::answered(&mut self.assignment(), result, offsets);
        self.commit_ended(ended);
    }
}

impl ClientContext for IntakeContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        crate::log::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The poll that served this gives the error as well; only the text comes here alone.
        let code = error.rdkafka_error_code().map(|code| code.to_string()).unwrap_or_default();
        let text = if reason.is_empty() { code } else { reason.to_owned() };
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        crate::log::statistics(statistics);
    }
}

fn names<'a>(slots: impl Iterator<Item = &'a Slot>) -> String {
    slots.map(Slot::to_string).collect::<Vec<_>>().join(" ")
}
