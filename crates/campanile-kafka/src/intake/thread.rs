//! The thread that owns the consumer.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::mpsc::UnboundedSender;

use super::assignment;
use super::commit;
use super::context::IntakeContext;
use super::control::{Control, Stage};
use super::flow::{self, ALLOWANCE, Flow};
use super::native::fetched::{Batch, Fetched, Message, TopicHandle};
use super::{Event, Received, Settings, message, native, start, transact};
use crate::budget::Amount;
use crate::error::ConsumerError;
use crate::slot::Slot;
use crate::status;
use crate::vitals::Vitals;
use crate::watch::Watcher;

/// The most records of one hand-over.
const BATCH: usize = 512;

/// How long the thread sleeps if nobody wakes it. librdkafka does when there is something, and the
/// dispatcher when there is room; this is for what neither tells.
const IDLE: Duration = Duration::from_millis(20);

/// How often the dispatcher is asked whether it works.
const TICK: Duration = Duration::from_secs(1);

/// How long it may take, when the consumer is closed, until a group that it joins has taken it in, and
/// until it has left. Brokers that cannot be reached hold up the end for no longer.
const MEMBERSHIP: Duration = Duration::from_secs(2);

/// Consumes until it is told to close.
pub(super) fn run(settings: Settings, control: Arc<Control>, events: UnboundedSender<Event>) {
    match Worker::start(&settings, control, events.clone()) {
        Ok(worker) => worker.work(),
        // If the dispatcher is gone, nobody wants to know.
        Err(error) => drop(events.send(Event::Failed(error))),
    }
}

struct Worker {
    consumer: BaseConsumer<IntakeContext>,
    fetched: Arc<Fetched>,
    batch: Batch,
    /// The largest record of the last batch.
    largest: u64,
    control: Arc<Control>,
    clock: Clock,
    flow: Flow,
    /// Whether there are retry topics.
    retries: bool,
    /// Where the last record came from: librdkafka hands over long runs of one partition.
    run: Option<Run>,
    /// How many partitions are paused.
    paused: usize,
    /// When changed marks were last committed.
    committed: Duration,
    vitals: Arc<Vitals>,
    ticked: Duration,
    newer_protocol: bool,
    /// Whether it has to unsubscribe to leave its group: in the classic protocol, librdkafka's close
    /// leaves none in which it has no partitions. A static member stays in it.
    unsubscribes: bool,
    watcher: Watcher,
}

/// Records of one partition after another.
struct Run {
    topic: TopicHandle,
    slot: Arc<Slot>,
}

impl Worker {
    fn start(
        settings: &Settings,
        control: Arc<Control>,
        events: UnboundedSender<Event>,
    ) -> Result<Self, ConsumerError> {
        let this = thread::current();
        let fetched = Arc::new(Fetched::new(this.clone()));
        let context = IntakeContext::new(
            events,
            fetched.clone(),
            settings.revoke_timeout,
            settings.rungs.clone(),
            settings.vitals.clone(),
            &control,
        );
        let mut consumer: BaseConsumer<IntakeContext> =
            settings.client.create_with_context(context).map_err(|error| match error {
                KafkaError::ClientCreation(text) => {
                    ConsumerError::kafka(format!("librdkafka refuses the settings: {text}"), None)
                }
                error => ConsumerError::kafka("librdkafka refuses the settings", Some(error)),
            })?;
        consumer.set_nonempty_callback(move || this.unpark());
        start::check(&consumer, settings, &control)?;
        transact::begin(&consumer, settings, &control)?;
        start::subscribe(&consumer, settings, &control)?;
        // Last, for the consumer must not be dropped before this is closed.
        fetched.open(&consumer);
        let clock = Clock::boot();
        let committed = clock.now();
        let (vitals, ticked) = (settings.vitals.clone(), committed);
        vitals.enter(status::Stage::Serving);
        let newer_protocol = settings.client.get("group.protocol") == Some("consumer");
        let unsubscribes = !newer_protocol && settings.client.get("group.instance.id").is_none();
        let (flow, run, paused) = (Flow::Open, None, 0);
        let retries = !settings.rungs.is_empty();
        Ok(Self {
            consumer,
            fetched,
            batch: Batch::default(),
            largest: 0,
            control,
            clock,
            flow,
            retries,
            run,
            paused,
            committed,
            vitals,
            ticked,
            newer_protocol,
            unsubscribes,
            watcher: Watcher::default(),
        })
    }

    fn work(mut self) {
        loop {
            let stage = self.control.stage();
            if stage == Stage::Closing {
                return self.close();
            }
            let now = self.clock.now();
            self.flow = self.flow.next(self.control.level(), now);
            self.pause_and_resume(stage);
            self.commit_changed(now);
            self.tick(now);
            self.watcher.look(&self.control.watch, now);
            let read = match (stage, self.flow) {
                (Stage::Reading, Flow::Full { .. }) => self.wait_for_room(),
                (Stage::Reading, _) => self.read(),
                _ => self.discard(),
            };
            if !read {
                thread::park_timeout(IDLE);
            }
        }
    }

    /// Hands over what there is, up to a batch and to the budget. Whether there was anything.
    fn read(&mut self) -> bool {
        let room = self.room();
        // Those that are taken come, however large they are; so take as many as fit.
        let fit = usize::try_from(room.bytes / self.largest.max(1)).unwrap_or(BATCH);
        let most = usize::try_from(room.records).unwrap_or(BATCH).min(fit).clamp(1, BATCH);
        self.hand_over(most)
    }

    /// Serves callbacks, and hands over so many records. Whether there was anything.
    fn hand_over(&mut self, most: usize) -> bool {
        let _span = tracing::trace_span!("receive").entered();
        let Self { consumer, fetched, batch, run, .. } = self;
        let context = consumer.context();
        let (records, amount, largest) = Default::default();
        let mut taken = Taken { run, context, records, amount, largest };
        let served = serve_events(consumer, |message| taken.take(&message));
        let mut messages = fetched.take(batch, most);
        taken.records.reserve(messages.len());
        while let Some(message) = messages.next() {
            match message {
                Ok(message) => taken.take(&message),
                Err(error) => failed(context, error),
            }
        }
        drop(messages);
        let Taken { records, amount, largest, .. } = taken;
        if records.is_empty() {
            return served;
        }
        self.largest = largest;
        self.control.received(amount);
        self.consumer.context().tell(Event::Records(records));
        true
    }

    /// What one read may take: so little that a partition which is paused after it was read from does
    /// not fill the budget alone. In a stall, a partition's part of what is beyond the budget.
    fn room(&self) -> Amount {
        let budget = self.control.budget();
        match self.control.room() {
            Some(room) if self.flow != Flow::Stalled => room.at_most(budget.part(ALLOWANCE)),
            _ => {
                let partitions = self.consumer.context().assignment().len();
                budget.part(ALLOWANCE / partitions as f64)
            }
        }
    }

    /// Serves callbacks, and drops the records that are still on their way. Whether there were any.
    fn discard(&mut self) -> bool {
        let served = serve_events(&self.consumer, |_| {});
        self.fetched.take(&mut self.batch, BATCH).len() > 0 || served
    }

    /// Nothing is read, but callbacks are served, for a rebalance may be waiting. The dispatcher wakes
    /// the thread at low water.
    fn wait_for_room(&mut self) -> bool {
        if self.hand_over(0) {
            return true;
        }
        self.control.set_waiting(true);
        if self.control.level() >= super::control::LOW_WATER {
            thread::park_timeout(IDLE);
        }
        self.control.set_waiting(false);
        true
    }

    fn pause_and_resume(&mut self, stage: Stage) {
        let draining = stage != Stage::Reading;
        // Else there is nobody to pause or to resume.
        let calm = flow::calm(self.retries);
        if !draining && self.control.level() <= calm && self.paused == 0 {
            return;
        }
        let context = self.consumer.context();
        let mut assignment = context.assignment();
        let (partitions, retries) = (assignment.len(), assignment.retries());
        let budget = self.control.budget();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        self.paused = 0;
        for held in assignment.iter_mut() {
            let level = held.slot.stock.held().level(budget);
            let most = flow::most(held.slot.rung.as_ref().map(|_| retries));
            if !held.paused && (draining || self.flow.pauses(level, most, partitions)) {
                held.paused = true;
                pause.push(held.slot.clone());
            } else if held.paused && !draining && self.flow.resumes(level, most, partitions) {
                held.paused = false;
                resume.push(held.slot.clone());
            }
            self.paused += usize::from(held.paused);
        }
        drop(assignment);
        if !pause.is_empty() {
            tracing::debug!(partitions = pause.len(), "pause");
            told(self.consumer.pause(&assignment::list(pause.iter().map(|slot| &**slot))));
        }
        if !resume.is_empty() {
            tracing::debug!(partitions = resume.len(), "resume");
            told(self.consumer.resume(&assignment::list(resume.iter().map(|slot| &**slot))));
        }
    }

    fn commit_changed(&mut self, now: Duration) {
        if transact::go_on(&self.consumer, &self.control) {
            return;
        }
        if now.saturating_sub(self.committed) < commit::INTERVAL {
            return;
        }
        self.committed = now;
        let context = self.consumer.context();
        let Some(offsets) = commit::changed(&mut context.assignment()) else {
            return;
        };
        let span = tracing::debug_span!("commit", partitions = offsets.count());
        if let Err(error) = span.in_scope(|| native::commit(&self.consumer, &offsets)) {
            context.commit_ended(Err(error));
        }
    }

    /// Shows that it works; once a second, asks the same of the dispatcher, and librdkafka how far
    /// partitions go.
    fn tick(&mut self, now: Duration) {
        self.vitals.round();
        if now.saturating_sub(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        let context = self.consumer.context();
        for held in context.assignment().iter_mut() {
            if let Some(end) = native::end(&self.consumer, &held.slot.topic, held.slot.partition) {
                held.slot.extent.reaches(end);
            }
        }
        // In the newer protocol a member that gets no partitions is told nothing.
        if self.newer_protocol && !self.vitals.is_assigned() && native::is_member(&self.consumer) {
            self.vitals.assign(&[]);
        }
        if self.vitals.ask() {
            context.tell(Event::Tick);
        }
    }

    /// Commits, and leaves the group: the consumer's drop does that, and serves the revoke.
    fn close(mut self) {
        // librdkafka leaves no group that has not yet taken it in, and would be waited for there as long
        // as a session lasts.
        if start::is_subscribed(&self.consumer) {
            self.serve_until(native::is_member);
        }
        self.fetched.close();
        let context = self.consumer.context();
        context.commit_now(&self.consumer, context.assignment().iter_mut());
        if self.unsubscribes {
            self.consumer.unsubscribe();
            self.serve_until(|consumer| !native::has_id(consumer));
        }
    }

    /// Serves callbacks until this is so.
    fn serve_until(&mut self, so: impl Fn(&BaseConsumer<IntakeContext>) -> bool) {
        let late = self.clock.now() + MEMBERSHIP;
        while !so(&self.consumer) && self.clock.now() < late {
            if !self.discard() {
                thread::park_timeout(IDLE);
            }
        }
    }
}

/// Serves callbacks, and takes errors. Whether there was anything.
///
/// Records come by a queue of their own, but for a partition whose queue could not be had.
fn serve_events(consumer: &BaseConsumer<IntakeContext>, mut take: impl FnMut(Message<'_>)) -> bool {
    let mut any = false;
    // `None` may stand for an event that was served: the next round finds the next.
    while let Some(event) = consumer.poll(Duration::ZERO) {
        any = true;
        match event {
            Ok(message) => take(Message::borrowed(&message)),
            Err(error) => failed(consumer.context(), error),
        }
    }
    any
}

/// Records that were taken in one round.
struct Taken<'a> {
    run: &'a mut Option<Run>,
    context: &'a IntakeContext,
    records: Vec<Received>,
    amount: Amount,
    largest: u64,
}

impl Taken<'_> {
    fn take(&mut self, message: &Message<'_>) {
        let Some(slot) = slot_of(self.run, self.context, message) else {
            return;
        };
        slot.extent.read(message.offset());
        let received = message::received(slot, message);
        let one = Amount::of(&received.record);
        slot.stock.receive(one);
        self.amount += one;
        self.largest = self.largest.max(one.bytes);
        self.records.push(received);
    }
}

/// The slot that a message belongs to; none if the partition is not ours any more.
fn slot_of<'a>(
    run: &'a mut Option<Run>,
    context: &IntakeContext,
    message: &Message<'_>,
) -> Option<&'a Slot> {
    let (topic, partition) = (message.topic_handle(), message.partition());
    let same =
        |run: &Run| run.topic == topic && run.slot.partition == partition && !run.slot.is_over();
    if !run.as_ref().is_some_and(same) {
        let slot = context.slot(message.topic(), partition);
        *run = slot.map(|slot| Run { topic, slot });
    }
    run.as_ref().map(|run| &*run.slot)
}

/// An error that librdkafka reports: most it deals with itself.
fn failed(context: &IntakeContext, error: KafkaError) {
    let reason = context.take_reason();
    let text = || reason.clone().unwrap_or_else(|| error.to_string());
    let started = context.assignment().started;
    match &error {
        KafkaError::PartitionEOF(_) => {}
        KafkaError::MessageConsumptionFatal(_) => {
            context.tell(Event::Failed(ConsumerError::kafka(text(), Some(error))));
        }
        KafkaError::MessageConsumption(code) if is_hopeless(*code, started) => {
            context.tell(Event::Failed(ConsumerError::kafka(text(), Some(error))));
        }
        _ => tracing::warn!(error = text(), "kafka"),
    }
}

/// Whether librdkafka would go on trying what cannot succeed.
fn is_hopeless(code: Code, started: bool) -> bool {
    match code {
        // `auto.offset.reset=error`: the partition is read by nobody from now on.
        Code::AutoOffsetReset => true,
        // At the start these are mistakes in the settings. Later they may be repaired where they
        // were made, while other partitions go on.
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InconsistentGroupProtocol
        | Code::UnsupportedAssignor
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature => !started,
        _ => false,
    }
}

fn told(result: Result<(), KafkaError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "partitions cannot be paused or resumed");
    }
}
