//! The driver's source: librdkafka's consumer.

use std::iter;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use campanile_core::Clock;
use campanile_driver::source::{
    Amount, Assignment, CommitResult, CommitStart, Event, LogChange, LogChanged, SeekTarget, Source,
};
use campanile_driver::{ConsumerError, SeekError, SeekTo};
use futures_util::future::BoxFuture;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::certificate::ClientCertificate;
use super::commit_result::{OffsetCommits, Uncommitted};
use super::context::{Context, PartitionNames, Rebalance};
use super::errors::handle_error;
use super::fetch_batch::{FetchBatch, LastPartition};
use super::look_up::look_up;
use super::start_positions::{Lookup, StartPositions};
use super::topic_check::TopicCheck;
use super::{Settings, start};
use crate::client::ClientSettings;
use crate::config::{config_error, reset_offset, uses_newer_protocol};
use crate::list_offsets::list;
use crate::native;
use crate::native::SourceWaker;
use crate::native::fetch_queues::{FetchError, FetchQueues, Message, MessageBuffer};
use crate::seek::Position;
use crate::transaction::{Committer, TransactionResult};
use crate::workarounds::{
    Leave, Reconnect, Release, ResetPositions, RevokedIn, StalledPartitions, Unfetched, leave,
};

/// The maximum number of records that are taken from librdkafka at once.
const MAX_BATCH: usize = 512;

/// The minimum share of a batch that each queue gets. With few queues, the shares are larger.
const MIN_QUEUE_SHARE: usize = 32;

/// The delay before a failed seek to a start position is repeated.
const SEEK_RETRY_DELAY: Duration = Duration::from_millis(20);

/// How long librdkafka may refuse each seek of a new partition before it has lost its start.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// The assumed size of a record, in bytes, until one has been received.
const ASSUMED_RECORD_SIZE: u64 = 16 * 1024;

pub(crate) struct KafkaSource {
    client: ClientSettings,
    pub(crate) consumer: Arc<BaseConsumer<Context>>,
    fetch_queues: Arc<FetchQueues>,
    waker: SourceWaker,
    buffer: MessageBuffer,
    /// The indices of the queues, in the order in which they are read.
    order: Vec<usize>,
    /// The size of the largest record in the last batch.
    largest: u64,
    /// The partition of the last record. librdkafka delivers long runs of records of one partition.
    last: Option<LastPartition>,
    commits: CommitStrategy,
    reconnect: Reconnect,
    start_positions: StartPositions,
    /// The start positions that are known, and that librdkafka has not sought to yet.
    pub(crate) starts: Vec<Position>,
    /// When those that are left were sought last, without success.
    sought_at: Option<Duration>,
    clock: Clock,
    pub(crate) stalled: StalledPartitions<Context>,
    resets: ResetPositions,
    /// The positions that drained partitions are moved to.
    seeks: Vec<Position>,
    pub(super) topic_check: TopicCheck,
    /// The offsets that are committed once their topics are checked.
    unchecked: Option<Vec<Uncommitted>>,
    /// The revoked partitions that are not released yet.
    revoked: Option<Revoked>,
    releasing: Release,
    newer_protocol: bool,
    /// Whether the consumer is known to have joined its group.
    joined: bool,
    /// Whether the consumer has to unsubscribe to leave its group. In the classic protocol, librdkafka's
    /// close does not leave a group in which the consumer has no partitions. A static member stays in
    /// the group.
    unsubscribes: bool,
    /// Set once the consumer is closed.
    leave: Option<Leave>,
}

/// Partitions that the driver drains.
struct Revoked {
    partitions: Vec<Arc<Assignment>>,
    /// Whether the group waits for their release.
    needs_release: bool,
    revoked_in: RevokedIn,
}

/// How offsets are committed.
enum CommitStrategy {
    Offsets(OffsetCommits),
    /// Offsets are committed together with outputs.
    Transactions(Box<Committer>),
}

impl KafkaSource {
    /// Connects, waits until the brokers answer and the topics exist, and joins the group.
    pub(crate) fn start(settings: &Settings) -> Result<Self, ConsumerError> {
        let waker = SourceWaker::default();
        let fetch_queues = Arc::new(FetchQueues::new(waker.clone()));
        let mut context = Context::new(fetch_queues.clone(), settings);
        context.tls = Some(ClientCertificate::new(settings));
        let mut client = settings.client.clone();
        // For a position that is not in the log. Those of partitions without a committed offset are looked
        // up by this crate. With `latest`, librdkafka would skip the records that the log still has.
        client.set("auto.offset.reset", "earliest");
        let mut consumer: BaseConsumer<Context> =
            client.create_with_context(context).map_err(|error| {
                let what = format!("librdkafka rejects the settings: {}", config_error(error));
                ConsumerError::kafka(what, None)
            })?;
        let nonempty = waker.clone();
        consumer.set_nonempty_callback(move || nonempty.wake());
        let consumer = Arc::new(consumer);
        start::check(&consumer, settings)?;
        let commits = match &settings.transactions {
            Some(transactions) => match Committer::start(
                transactions,
                settings.start_timeout,
                &settings.context,
                waker.clone(),
            )? {
                Some(committer) => CommitStrategy::Transactions(Box::new(committer)),
                // A shutdown was requested during the start.
                None => CommitStrategy::Offsets(OffsetCommits::default()),
            },
            None => CommitStrategy::Offsets(OffsetCommits::default()),
        };
        // Open the queues before partitions are assigned. They must be closed before the consumer is
        // dropped, which an early return would not do.
        fetch_queues.open(&consumer);
        start::join(&consumer, settings).inspect_err(|_| fetch_queues.close())?;
        let newer_protocol = uses_newer_protocol(&settings.client);
        let reset = reset_offset(&settings.client);
        let start_positions = StartPositions::new(consumer.clone(), reset, waker.clone());
        let stalled = StalledPartitions::new(consumer.clone(), Context::is_closing);
        let topic_check = TopicCheck::new(consumer.clone(), waker.clone());
        Ok(Self {
            client: settings.client.clone(),
            consumer,
            fetch_queues,
            waker,
            buffer: MessageBuffer::default(),
            order: Vec::new(),
            largest: ASSUMED_RECORD_SIZE,
            last: None,
            commits,
            reconnect: Reconnect::default(),
            start_positions,
            starts: Vec::new(),
            sought_at: None,
            clock: Clock::boot(),
            stalled,
            resets: ResetPositions::default(),
            seeks: Vec::new(),
            topic_check,
            unchecked: None,
            revoked: None,
            releasing: Release::default(),
            newer_protocol,
            joined: false,
            unsubscribes: !newer_protocol && settings.client.get("group.instance.id").is_none(),
            leave: None,
        })
    }

    /// Polls the consumer's own queue, which runs callbacks and returns errors. Returns whether there
    /// was anything, since then there may be more: librdkafka wakes the driver only when an event
    /// arrives in an empty queue.
    ///
    /// Records arrive in the [`FetchQueues`], except those of a partition that could not be forwarded to
    /// one of them.
    fn serve_callbacks(&mut self, batch: &mut FetchBatch, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        let Self { consumer, last, .. } = self;
        // `None` may also mean that a callback was run, for a rebalance, a commit or a line of the log.
        // The next round then finds the next event.
        while let Some(event) = consumer.poll(Duration::ZERO) {
            any = true;
            match event {
                Ok(message) => {
                    batch.push(last, consumer, &Message::borrowed(&message));
                }
                Err(error) => {
                    let reason = consumer.context().take_reason();
                    let reason = reason.unwrap_or_else(|| error.to_string());
                    handle_error(consumer.context(), error, reason, events);
                }
            }
        }
        any | consumer.context().take_served()
    }

    /// Takes the events that callbacks have recorded.
    fn take_callbacks(&mut self, events: &mut Vec<Event>) {
        let (rebalances, commits) = {
            let mut state = self.consumer.context().state();
            // A partition that is revoked while others are not released yet waits for that.
            let is_revoke = |event: &Rebalance| matches!(event, Rebalance::Revoked { .. });
            let revokes = usize::from(self.revoked.is_some() || self.releasing.is_waiting());
            let mut waiting = state.rebalances.iter().enumerate().filter(|(_, it)| is_revoke(it));
            let count = waiting.nth(1 - revokes).map_or(state.rebalances.len(), |(index, _)| index);
            let rebalances: Vec<_> = state.rebalances.drain(..count).collect();
            (rebalances, std::mem::take(&mut state.commits))
        };
        for (result, offsets) in commits {
            if let CommitStrategy::Offsets(commits) = &mut self.commits {
                events.push(Event::Committed(commits.handle_response(result, &offsets)));
            }
        }
        for rebalance in rebalances {
            match rebalance {
                Rebalance::Assigned(assignments) => {
                    self.joined = true;
                    if !assignments.is_empty()
                        && let Err(error) = self.start_positions.start(assignments.clone())
                    {
                        let what = format!("failed to spawn a thread: {error}");
                        events.push(Event::Failed(ConsumerError::kafka(what, None)));
                    }
                    events.push(Event::Assigned(assignments));
                }
                Rebalance::Revoked { partitions, needs_release, lost, revoked_in } => {
                    self.joined &= !lost;
                    let revoked = partitions.clone();
                    self.revoked = Some(Revoked { partitions: revoked, needs_release, revoked_in });
                    events.push(Event::Revoked { partitions, lost });
                }
                Rebalance::Overtaken => {
                    self.releasing.end();
                    // The drain ends at once, and nothing is committed.
                    if let Some(revoked) = &mut self.revoked
                        && std::mem::take(&mut revoked.needs_release)
                    {
                        tracing::info!(
                            partitions = %PartitionNames(&revoked.partitions),
                            "partitions lost: the group was rebalanced again before they were drained"
                        );
                        let partitions = revoked.partitions.clone();
                        events.push(Event::Revoked { partitions, lost: true });
                    }
                }
            }
        }
    }

    /// Takes records up to `room`. Returns whether it took any, since then there may be more.
    fn take_records(
        &mut self,
        room: Amount,
        batch: &mut FetchBatch,
        events: &mut Vec<Event>,
    ) -> bool {
        let Self { consumer, fetch_queues, buffer, order, last, .. } = self;
        let fit = usize::try_from(room.bytes / self.largest.max(1)).unwrap_or(MAX_BATCH);
        let limit = usize::try_from(room.records).unwrap_or(MAX_BATCH).min(fit).clamp(1, MAX_BATCH);
        consumer.context().state().queues.read_order(order);
        let share = (limit / order.len().max(1)).max(MIN_QUEUE_SHARE);
        let mut remaining = limit;
        for &queue in &*order {
            let mut messages = fetch_queues.take(queue, buffer, share.min(remaining));
            remaining -= messages.len();
            batch.records.reserve(messages.len());
            while let Some(message) = messages.next() {
                match message {
                    Ok(message) => batch.push(last, consumer, &message),
                    Err(FetchError { error, reason }) => {
                        handle_error(consumer.context(), error, reason, events);
                    }
                }
            }
        }
        remaining < limit
    }

    /// Handles changes of logs that records have shown. With an `auto.offset.reset` of `error` they end
    /// serving, and no further record is delivered.
    fn handle_changes(&mut self, batch: &mut FetchBatch, events: &mut Vec<Event>) {
        for change in std::mem::take(&mut batch.changes) {
            match change.what {
                // A topic that was recreated has no offset in common with the old one.
                LogChanged::Truncated { .. } if change.partition.log_id().is_some() => {
                    self.topic_check.suspect(change);
                }
                _ => events.extend(self.change_events(change)),
            }
        }
        if events.iter().any(|event| matches!(event, Event::Failed(_))) {
            batch.records.clear();
        }
    }

    fn change_events(&self, change: LogChange) -> impl Iterator<Item = Event> + use<> {
        let failed = (reset_offset(&self.client) == Offset::Invalid).then(|| {
            let what = format!(
                "the log of {} has lost records, and `auto.offset.reset` is `error`: set the group's offset",
                change.partition
            );
            Event::Failed(ConsumerError::kafka(what, None))
        });
        iter::once(Event::LogChanged(change)).chain(failed)
    }

    /// Releases revoked partitions, if no commit of theirs is in flight.
    fn poll_release(&mut self) {
        let is_committing = || {
            matches!(
                &self.commits, CommitStrategy::Offsets(commits) if commits.has_released_in_flight()
            )
        };
        if self.releasing.poll(&self.clock, is_committing) {
            self.consumer.context().release(&self.consumer);
        }
    }

    /// Commits offsets whose topics are checked by now, and replaces the partitions of topics that were
    /// recreated.
    fn poll_topic_check(&mut self, events: &mut Vec<Event>) {
        let Some(mut checked) = self.topic_check.poll() else {
            return;
        };
        let recreated = checked.recreated();
        recreated.iter().for_each(|assignment| assignment.lose_log());
        self.consumer.context().replace(&self.consumer, recreated);
        for change in std::mem::take(&mut checked.changes) {
            events.extend(self.change_events(change));
        }
        let Some(mut offsets) = self.unchecked.take() else {
            return;
        };
        let mut error = None;
        offsets.retain(|offset| match checked.check(&offset.assignment) {
            Ok(is_same) => is_same && offset.is_current(),
            Err(failed) => {
                error.get_or_insert(failed);
                false
            }
        });
        let assignments = offsets.iter().map(|offset| &offset.assignment);
        if has_overtaken(&self.consumer, &self.revoked, assignments) {
            offsets.retain(|offset| !offset.assignment.is_revoked());
        }
        let CommitStrategy::Offsets(commits) = &mut self.commits else {
            return;
        };
        let result = match (offsets.is_empty(), error) {
            (false, _) => match self.commit_offsets(offsets) {
                CommitStart::Started => return,
                _ => CommitResult::Failed,
            },
            (true, Some(error)) => commits.finish(Err(error)),
            (true, None) => CommitResult::Refused,
        };
        events.push(Event::Committed(result));
    }

    pub(super) fn commit_offsets(&mut self, offsets: Vec<Uncommitted>) -> CommitStart {
        let CommitStrategy::Offsets(commits) = &mut self.commits else {
            return CommitStart::NotNow;
        };
        let span = tracing::debug_span!("commit", partitions = offsets.len());
        let mut list = TopicPartitionList::new();
        offsets.iter().for_each(|offset| offset.add_to(&mut list));
        match span.in_scope(|| native::commit(&self.consumer, &list)) {
            Ok(()) => {
                commits.start(offsets);
                CommitStart::Started
            }
            Err(error) => {
                commits.finish(Err(error));
                CommitStart::NotNow
            }
        }
    }

    fn poll_transactions(&mut self, events: &mut Vec<Event>) {
        if let CommitStrategy::Transactions(committer) = &mut self.commits {
            match committer.poll() {
                TransactionResult::Pending => {}
                TransactionResult::Committed => {
                    events.push(Event::Committed(CommitResult::Acknowledged))
                }
                TransactionResult::Aborted => events.push(Event::Committed(CommitResult::Failed)),
                TransactionResult::Ended(error) => {
                    events.push(Event::Committed(CommitResult::Refused));
                    events.push(Event::Failed(error));
                }
            }
        }
    }

    /// Seeks to the start positions that are known by now, and takes records from there on.
    fn seek_to_start(&mut self, events: &mut Vec<Event>) {
        while let Some(lookup) = self.start_positions.poll() {
            match lookup {
                Lookup::Found(position) => self.starts.push(position),
                Lookup::Recreated(change) => events.push(Event::LogChanged(change)),
                Lookup::NoOffset(assignment) => {
                    let what = format!(
                        "the group has no committed offset of {assignment}, and `auto.offset.reset` is \
                         `error`: set the group's offset"
                    );
                    events.push(Event::Failed(ConsumerError::kafka(what, None)));
                }
                Lookup::Failed(error) => {
                    let reason = format!("failed to look up the offset to start at: {error}");
                    handle_error(self.consumer.context(), error, reason, events);
                }
            }
        }
        let now = self.clock.now();
        if self.sought_at.is_some_and(|last| now < last + SEEK_RETRY_DELAY) {
            return;
        }
        self.consumer.context().seek_to_start(&self.consumer, &mut self.starts);
        self.sought_at = (!self.starts.is_empty()).then_some(now);
    }
}

impl Source for KafkaSource {
    fn poll(
        &mut self,
        cx: &mut task::Context<'_>,
        room: Option<Amount>,
        events: &mut Vec<Event>,
    ) -> bool {
        // Register the waker before polling, so that no event is missed.
        self.waker.register(cx.waker());
        let before = events.len();
        let mut batch = FetchBatch::default();
        let mut any = self.serve_callbacks(&mut batch, events);
        // Take callbacks before records, so that a partition's assignment is reported before its first
        // record.
        self.take_callbacks(events);
        self.poll_release();
        self.poll_topic_check(events);
        self.seek_to_start(events);
        let sought = self.consumer.context().seek_and_reassign(&self.consumer, &mut self.seeks);
        events.extend(sought.into_iter().map(|(old, new)| Event::Sought { old, new }));
        match room {
            Some(room) => any |= self.take_records(room, &mut batch, events),
            None => self.stalled.reset(),
        }
        self.handle_changes(&mut batch, events);
        self.resets.append(&mut batch.resets);
        self.resets.seek(&self.consumer);
        if !batch.records.is_empty() {
            self.largest = batch.largest;
            events.push(Event::Records(batch.records));
        }
        self.poll_transactions(events);
        if let Some(leave) = &mut self.leave
            && leave.poll(&self.consumer, &self.fetch_queues)
        {
            events.push(Event::Closed);
        }
        any || events.len() > before
    }

    fn pause(&mut self, partitions: &[Arc<Assignment>]) {
        self.stalled.pause(partitions);
        // A seek would resume the partition. Only one that was not started needs it nevertheless.
        self.starts.retain(|(assignment, _)| {
            assignment.offset_range.position().is_none() || !self.stalled.is_paused(assignment)
        });
        log_error(self.consumer.pause(&list(&current(partitions), Offset::Invalid)));
    }

    fn resume(&mut self, partitions: &[Arc<Assignment>]) {
        self.stalled.resume(partitions);
        log_error(self.consumer.resume(&list(&current(partitions), Offset::Invalid)));
    }

    fn look_up(
        &mut self,
        partition: &Arc<Assignment>,
        to: SeekTo,
    ) -> BoxFuture<'static, Result<SeekTarget, SeekError>> {
        look_up(self.client.clone(), partition.clone(), to)
    }

    fn seek(&mut self, partition: &Arc<Assignment>, offset: i64) {
        self.seeks.push((partition.clone(), offset));
    }

    fn commit(&mut self, partitions: &[Arc<Assignment>]) -> CommitStart {
        if has_overtaken(&self.consumer, &self.revoked, partitions) {
            let current = current(partitions);
            return if current.is_empty() { CommitStart::Never } else { self.commit(&current) };
        }
        if let CommitStrategy::Transactions(committer) = &mut self.commits {
            let (consumer, revoked) = (&self.consumer, &self.revoked);
            // Once more after the metadata was read, which may be that of a later generation.
            let has_overtaken = || has_overtaken(consumer, revoked, partitions);
            return committer.commit(partitions, || group(consumer).filter(|_| !has_overtaken()));
        }
        let offsets = Uncommitted::of(partitions);
        if offsets.is_empty() {
            return CommitStart::NotNow;
        }
        if !self.topic_check.start(offsets.iter().map(|of| of.assignment.clone()).collect()) {
            return self.commit_offsets(offsets);
        }
        self.unchecked = Some(offsets);
        CommitStart::Started
    }

    fn release(&mut self) {
        if self.revoked.take().is_some_and(|revoked| revoked.needs_release) {
            self.releasing.start(&self.clock);
        }
        self.poll_release();
    }

    fn tick(&mut self, partitions: &[Arc<Assignment>]) {
        let Unfetched { stalled, unstarted } = self.stalled.check(partitions);
        for assignment in &unstarted {
            // Its offset is known, so that librdkafka has lost its start, and a seek has not helped.
            let is_known = self.starts.iter().any(|(start, _)| start.id == assignment.id);
            assignment.set_unfetched(is_known && assignment.assigned_at.elapsed() >= LOST_AFTER);
        }
        if !unstarted.is_empty() {
            tracing::warn!(
                partitions = %PartitionNames(&unstarted),
                "these assigned partitions were not started within 30 s: restart the process, unless another \
                 event says why their offsets are not known"
            );
        }
        for assignment in stalled {
            tracing::warn!(
                partition = %assignment,
                "librdkafka fetches no record of the partition although there are some; seeking to its \
                 position"
            );
            let position = assignment.offset_range.position();
            let position = position.expect("a partition that stalls was started");
            self.starts.push((assignment, position));
            self.waker.wake();
        }
        self.topic_check.check_regularly(partitions);
        self.reconnect.check(self.consumer.client(), self.client.brokers());
        if let Some(certificate) = &self.consumer.context().tls {
            certificate.check(self.consumer.client());
        }
        // In the newer protocol, librdkafka runs no callback for a member that gets no partitions.
        if self.newer_protocol && !self.joined && native::is_member(&self.consumer) {
            self.consumer.context().state().rebalances.push(Rebalance::Assigned(Vec::new()));
            self.waker.wake();
        }
    }

    fn close(&mut self) {
        self.releasing.end();
        self.consumer.context().close(&self.consumer);
        self.leave = Some(Leave::new(start::is_subscribed(&self.consumer), self.unsubscribes));
    }
}

impl Drop for KafkaSource {
    /// Leaves the group. This handles the revoke, and may block for as long as brokers do not answer.
    fn drop(&mut self) {
        self.consumer.context().close(&self.consumer);
        self.fetch_queues.close();
        leave::close(&self.consumer, self.unsubscribes);
    }
}

/// Checks whether another member may have some of these partitions, because their revoke was overtaken by
/// another rebalance.
fn has_overtaken<'a>(
    consumer: &BaseConsumer<Context>,
    revoked: &Option<Revoked>,
    partitions: impl IntoIterator<Item = &'a Arc<Assignment>>,
) -> bool {
    let Some(Revoked { revoked_in, .. }) = revoked else { return false };
    let is_overtaken = partitions.into_iter().any(|assignment| assignment.is_revoked())
        && revoked_in.is_overtaken(consumer);
    if is_overtaken {
        tracing::debug!("not committing revoked partitions, which another member may have");
    }
    is_overtaken
}

/// The partitions that were not revoked. librdkafka would take one that was for its next assignment.
fn current(partitions: &[Arc<Assignment>]) -> Vec<Arc<Assignment>> {
    partitions.iter().filter(|assignment| !assignment.is_revoked()).cloned().collect()
}

/// Reads the group's metadata with the generation that the brokers check on a commit, if the
/// consumer is a member. Without a generation the brokers would accept the commit of any client.
fn group(consumer: &BaseConsumer<Context>) -> Option<ConsumerGroupMetadata> {
    let group = consumer.group_metadata()?;
    // Check the membership after reading the metadata. The consumer becomes a member only while this
    // thread polls, so the metadata is that of a member.
    native::is_member(consumer).then_some(group)
}

fn log_error(result: Result<(), KafkaError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "failed to pause or resume partitions");
    }
}
