//! What comes from Kafka, and the offsets that go back.
//!
//! One OS thread owns the consumer and polls it, whatever the handlers do: rebalance callbacks run
//! on the thread that polls, and closing a consumer blocks; neither may starve a runtime. The thread
//! copies messages into records, hands them over in batches, and commits the marks that the
//! dispatcher sets.
//!
//! It reads up to a budget. Above it, it first only waits: pausing a partition throws its prefetched
//! records away, so that is for stalls.

mod assignment;
mod commit;
mod context;
mod control;
mod flow;
mod message;
mod native;
mod start;
mod thread;
mod to_record;
mod transact;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

use campanile_core::Record;
use rdkafka::ClientConfig;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::budget::Amount;
use crate::error::ConsumerError;
use crate::retry_topics::Rungs;
use crate::slot::{Slot, SlotId};
use crate::transaction::Terms;
use crate::vitals::Vitals;
use crate::watch::Watch;

use self::control::{Control, Stage};
pub use self::to_record::ToRecord;

/// How the intake is to consume.
pub(crate) struct Settings {
    pub(crate) client: ClientConfig,
    pub(crate) brokers: String,
    pub(crate) topics: Vec<String>,
    /// Retry topics; they are among the topics.
    pub(crate) rungs: Rungs,
    /// Must be there as well.
    pub(crate) dead_letter_topics: Vec<Arc<str>>,
    pub(crate) budget: Amount,
    /// How long a revoke waits for the dispatcher at most.
    pub(crate) revoke_timeout: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) vitals: Arc<Vitals>,
    /// Where offsets are committed in transactions.
    pub(crate) transactions: Option<Terms>,
}

/// What the thread tells the dispatcher.
pub(crate) enum Event {
    /// A partition is ours from now on.
    Assigned(Arc<Slot>),
    /// Records, in order within each partition.
    Records(Vec<Received>),
    /// Partitions are taken away. The thread waits until `done` is dropped.
    Revoked { slots: Vec<SlotId>, lost: bool, done: Done },
    /// Outputs that filled the budget are sent: there is room for others.
    Room,
    /// Comes about once a second, and not before the last one was answered.
    Tick,
    /// Nothing comes any more.
    Failed(ConsumerError),
}

/// A record, and whose it is.
pub(crate) struct Received {
    pub(crate) slot: SlotId,
    pub(crate) record: Record,
    /// When it is due, in a retry topic.
    pub(crate) due: Option<SystemTime>,
}

/// Held by the dispatcher while it deals with a revoke.
pub(crate) type Done = SyncSender<()>;

/// The dispatcher's end. Dropped, it closes the consumer.
pub(crate) struct Intake {
    events: UnboundedReceiver<Event>,
    control: Arc<Control>,
    /// Whether records give something out.
    outputs: bool,
    thread: Thread,
}

impl Intake {
    /// Starts the thread.
    pub(crate) fn start(settings: Settings) -> Result<Self, ConsumerError> {
        let (sender, events) = mpsc::unbounded_channel();
        let control = Arc::new(Control::new(settings.budget));
        let outputs = settings.transactions.is_some();
        let thread = std::thread::Builder::new().name("campanile-kafka".into()).spawn({
            let control = control.clone();
            move || thread::run(settings, control, sender)
        });
        match thread {
            // Nobody joins it: a broker that does not answer must not hold up whoever waits.
            Ok(thread) => Ok(Self { events, control, outputs, thread: thread.thread().clone() }),
            Err(error) => {
                Err(ConsumerError::kafka(format!("no thread for the consumer: {error}"), None))
            }
        }
    }

    /// The next events, at least one and at most `limit`; 0 when the consumer is closed.
    pub(crate) fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        events: &mut Vec<Event>,
        limit: usize,
    ) -> Poll<usize> {
        self.events.poll_recv_many(cx, events, limit)
    }

    /// The dispatcher has finished records of this amount.
    pub(crate) fn finished(&self, amount: Amount) {
        if self.control.finished(amount) {
            self.thread.unpark();
        }
    }

    /// Whether outputs fill the budget. Then [`Event::Room`] comes when they do not any more.
    pub(crate) fn is_full_of_outputs(&self) -> bool {
        self.outputs && self.control.is_full_of_outputs()
    }

    /// Where the dispatcher tells that it runs a handler itself.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.control.watch.clone()
    }

    /// No further records, please; partitions stay assigned and marks are committed.
    pub(crate) fn stop_reading(&self) {
        self.enter(Stage::Draining);
    }

    /// Commits the marks and leaves the group. The events end when that is done.
    pub(crate) fn close(&self) {
        self.enter(Stage::Closing);
    }

    fn enter(&self, stage: Stage) {
        self.control.enter(stage);
        self.thread.unpark();
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.close();
    }
}
