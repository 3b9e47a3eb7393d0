//! The callbacks of librdkafka, on the thread that polls the consumer. They only record events; the
//! source handles them.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use campanile_driver::SourceContext;
use campanile_driver::source::Assignment;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};

use super::Settings;
use super::certificate::ClientCertificate;
use super::queues::PartitionQueues;
use crate::epilogue::RetryTopicList;
use crate::list_offsets::list;
use crate::log::LogLimit;
use crate::native::fetch_queues::FetchQueues;
use crate::oauth::{self, OauthTokens};
use crate::seek::{Position, seek_and_resume};
use crate::transaction::PendingOutputs;
use crate::workarounds::RevokedIn;

/// The timeout of the request for the cluster's id. The client mostly knows it.
const CLUSTER_ID_TIMEOUT: Duration = Duration::from_millis(500);

/// The context of the consumer's client.
pub(crate) struct Context {
    state: Mutex<ContextState>,
    fetch_queues: Arc<FetchQueues>,
    retry_topics: RetryTopicList,
    driver: SourceContext,
    pub(super) log_limit: LogLimit,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) is_transactional: bool,
    tokens: Option<Arc<OauthTokens>>,
    cluster_id: OnceLock<Arc<str>>,
    /// Whether a callback has run that records no event.
    has_served: AtomicBool,
}

/// The assigned partitions, and the events that the source has not taken yet.
#[derive(Default)]
pub(super) struct ContextState {
    /// The assigned partitions from which records are taken, without those that were revoked.
    topics: HashMap<Arc<str>, HashMap<i32, Arc<Assignment>>>,
    /// The assigned partitions that are not at their start position yet.
    awaiting_start: Vec<Arc<Assignment>>,
    /// The queues of all assigned partitions, including those that wait for their start.
    pub(super) queues: PartitionQueues,
    /// The id of the log from which each partition was read last.
    log_ids: HashMap<(Arc<str>, i32), Arc<str>>,
    /// Whether partitions were ever assigned.
    pub(super) started: bool,
    pub(super) rebalances: Vec<Rebalance>,
    /// The revoked partitions that are not released yet.
    unreleased: Option<TopicPartitionList>,
    pub(super) commits: Vec<(KafkaResult<()>, TopicPartitionList)>,
    /// The text of the last error.
    reason: Option<String>,
    /// Whether the consumer is leaving its group. Revoked partitions are then released immediately.
    closing: bool,
}

pub(super) enum Rebalance {
    Assigned(Vec<Arc<Assignment>>),
    /// If `needs_release`, the source calls [`Context::release`] when these partitions are drained.
    Revoked {
        partitions: Vec<Arc<Assignment>>,
        needs_release: bool,
        lost: bool,
        revoked_in: RevokedIn,
    },
    /// The group has moved on before the partitions that the driver drains were released. They need no release
    /// any more, and other members may have them.
    Overtaken,
}

impl Context {
    pub(super) fn new(fetch_queues: Arc<FetchQueues>, settings: &Settings) -> Self {
        let (state, tls, cluster_id, has_served) = Default::default();
        Self {
            state,
            fetch_queues,
            retry_topics: settings.retry_topics.clone(),
            driver: settings.context.clone(),
            log_limit: settings.log_limit.clone(),
            tls,
            is_transactional: settings.transactions.is_some(),
            tokens: settings.client.tokens.clone(),
            cluster_id,
            has_served,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ContextState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seeks to the start positions of these partitions, and takes their records from now on.
    /// Partitions for which the seek fails stay in the list.
    pub(super) fn seek_to_start(
        &self,
        consumer: &BaseConsumer<Self>,
        positions: &mut Vec<Position>,
    ) {
        // Partitions that were revoked in the meantime belong to another consumer. Those that are being
        // drained continue at the position of a seek, if at all.
        positions.retain(|(assignment, _)| !assignment.is_revoked() && !assignment.is_stopped());
        if positions.is_empty() {
            return;
        }
        for (assignment, offset) in positions.iter_mut() {
            // A stalled partition may have been read on while its seek failed.
            *offset = assignment.offset_range.position().unwrap_or(*offset);
        }
        let sought = seek_and_resume(consumer, positions, |of| self.forward(consumer, of));
        let mut state = self.state();
        for (assignment, offset) in sought {
            if assignment.offset_range.position().is_none() {
                assignment.set_unfetched(false);
            }
            assignment.offset_range.set_start(offset);
            state.awaiting_start.retain(|other| other.id != assignment.id);
            state.add_assignment(assignment);
        }
    }

    /// Seeks to these positions of paused partitions, resumes the partitions, and replaces their
    /// assignments. Returns the old and the new assignments. Partitions for which the seek fails stay in
    /// the list.
    pub(super) fn seek_and_reassign(
        &self,
        consumer: &BaseConsumer<Self>,
        positions: &mut Vec<Position>,
    ) -> Vec<(Arc<Assignment>, Arc<Assignment>)> {
        positions.retain(|(assignment, _)| !assignment.is_revoked());
        if positions.is_empty() {
            return Vec::new();
        }
        let sought = seek_and_resume(consumer, positions, |of| self.forward(consumer, of));
        let mut state = self.state();
        let replace = |(old, offset): Position| {
            let new = self.new_assignment(old.topic.clone(), old.partition);
            new.offset_range.set_start(offset);
            for (old, new) in
                [(&old.log_id, &new.log_id), (&old.replaced_log_id, &new.replaced_log_id)]
            {
                if let Some(id) = old.get() {
                    new.get_or_init(|| id.clone());
                }
            }
            old.revoke();
            // Otherwise a revoke would find the old assignment, and the new one would never end.
            state.awaiting_start.retain(|other| other.id != old.id);
            state.queues.replace(old.id, &new);
            state.add_assignment(new.clone());
            (old, new)
        };
        sought.into_iter().map(replace).collect()
    }

    /// Forwards the messages of an assigned partition to its queue.
    fn forward(&self, consumer: &BaseConsumer<Self>, assignment: &Assignment) {
        let Assignment { id, topic, partition, .. } = assignment;
        let queue = self.state().queues.index(*id);
        if let Some(queue) = queue {
            self.fetch_queues.forward_partition(consumer, topic, *partition, queue);
        }
    }

    fn new_assignment(&self, topic: Arc<str>, partition: i32) -> Arc<Assignment> {
        let retry_topic = self.retry_topics.find(&topic);
        let assignment = self.driver.assignment(topic, partition);
        let assignment = match retry_topic {
            Some(retry_topic) => assignment.with_delay(retry_topic.delay),
            None => assignment,
        };
        Arc::new(match self.is_transactional {
            true => PendingOutputs::add_to(assignment),
            false => assignment,
        })
    }

    /// Returns the id of the log from which this partition was read last.
    pub(super) fn last_log_id(&self, assignment: &Assignment) -> Option<Arc<str>> {
        let key = (assignment.topic.clone(), assignment.partition);
        self.state().log_ids.get(&key).cloned()
    }

    /// Returns the id of the brokers' cluster, if they have told it.
    pub(super) fn cluster_id(&self, consumer: &BaseConsumer<Self>) -> Option<&Arc<str>> {
        if self.cluster_id.get().is_none()
            && let Some(id) = consumer.client().fetch_cluster_id(CLUSTER_ID_TIMEOUT)
        {
            self.cluster_id.get_or_init(|| id.into());
        }
        self.cluster_id.get()
    }

    pub(super) fn assignment(&self, topic: &str, partition: i32) -> Option<Arc<Assignment>> {
        self.state().topics.get(topic)?.get(&partition).cloned()
    }

    /// Returns whether a callback that records no event has run since the last call.
    pub(super) fn take_served(&self) -> bool {
        self.has_served.swap(false, Ordering::Relaxed)
    }

    pub(super) fn take_reason(&self) -> Option<String> {
        self.state().reason.take()
    }

    /// Releases all revoked partitions, and from now on each partition as soon as it is revoked.
    pub(super) fn close(&self, consumer: &BaseConsumer<Self>) {
        self.state().closing = true;
        self.release(consumer);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// Releases the partitions of a revoke, unless this was done already.
    pub(super) fn release(&self, consumer: &BaseConsumer<Self>) {
        let unreleased = self.state().unreleased.take();
        unreleased.iter().for_each(|list| Self::unassign(consumer, list));
    }

    fn unassign(consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "failed to release revoked partitions");
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, list: &mut TopicPartitionList) {
        let mut state = self.state();
        state.started = true;
        let overtaken = state.overtake_revoke();
        let mut assignments = Vec::new();
        for (topic, partition) in topic_partitions(list) {
            let new = self.new_assignment(topic.into(), partition);
            state.awaiting_start.push(new.clone());
            state.queues.add(new.clone());
            assignments.push(new);
        }
        // A cooperative rebalance that adds no partitions is reported, but not logged.
        if !assignments.is_empty() {
            tracing::info!(partitions = %PartitionNames(&assignments), "partitions assigned");
        }
        state.rebalances.push(Rebalance::Assigned(assignments.clone()));
        drop(state);
        // Otherwise they could not be assigned again, and their release would end the new assignment.
        overtaken.iter().for_each(|list| Self::unassign(consumer, list));
        // Before the partitions are assigned, so that none of their messages go to the consumer's own queue. This
        // also makes a topic known that was not: only partitions of a known topic can be paused.
        assignments.iter().for_each(|assignment| self.forward(consumer, assignment));
        // librdkafka is not to look up offsets: it would repeat a lookup that is in flight during the seek,
        // and undo the seek. Offset 0 needs no lookup, and nothing is fetched from a paused partition.
        if let Err(error) = consumer.pause(list) {
            tracing::warn!(%error, "failed to pause partitions until their offset is known");
        }
        list.set_all_offsets(Offset::Offset(0)).expect("0 is a valid offset");
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
            RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(list),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "failed to accept assigned partitions");
        }
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let (lost, revoked_in) = (consumer.assignment_lost(), RevokedIn::now(consumer));
        let mut state = self.state();
        let mut partitions = Vec::new();
        for (topic, partition) in topic_partitions(list) {
            if let Some(assignment) = state.remove(&topic, partition) {
                assignment.revoke();
                state.queues.remove(assignment.id);
                partitions.push(assignment);
            }
        }
        if !partitions.is_empty() {
            tracing::info!(partitions = %PartitionNames(&partitions), lost, "partitions revoked");
        }
        if state.closing {
            drop(state);
            return Self::unassign(consumer, list);
        }
        let mut unreleased = list.clone();
        // A release would be taken for the answer to this revoke, so those of an earlier one are released with it.
        for (topic, partition) in state.overtake_revoke().iter().flat_map(topic_partitions) {
            if unreleased.find_partition(&topic, partition).is_none() {
                unreleased.add_partition(&topic, partition);
            }
        }
        state.unreleased = Some(unreleased);
        let needs_release = true;
        state.rebalances.push(Rebalance::Revoked { partitions, needs_release, lost, revoked_in });
    }

    /// Replaces the assignments of partitions that have another log: the old ones are lost, and the
    /// partitions are started as if they had just been assigned.
    pub(super) fn replace(&self, consumer: &BaseConsumer<Self>, lost: Vec<Arc<Assignment>>) {
        let mut state = self.state();
        let mut replace = |old: &Arc<Assignment>| {
            // A partition that was revoked in the meantime belongs to another consumer.
            state.remove_assignment(old)?;
            old.revoke();
            let new = self.new_assignment(old.topic.clone(), old.partition);
            state.queues.replace(old.id, &new);
            state.awaiting_start.push(new.clone());
            Some((old.clone(), new))
        };
        let (partitions, new): (Vec<_>, Vec<_>) = lost.iter().filter_map(&mut replace).unzip();
        if partitions.is_empty() {
            return;
        }
        let list = list(&new, Offset::Invalid);
        state.rebalances.push(Rebalance::Revoked {
            partitions,
            needs_release: false,
            lost: true,
            revoked_in: RevokedIn::default(),
        });
        state.rebalances.push(Rebalance::Assigned(new));
        drop(state);
        if let Err(error) = consumer.pause(&list) {
            tracing::warn!(%error, "failed to pause partitions until their offset is known");
        }
    }
}

impl ContextState {
    /// Makes partitions that are not released yet lost, and returns them.
    fn overtake_revoke(&mut self) -> Option<TopicPartitionList> {
        let unreleased = self.unreleased.take()?;
        for rebalance in &mut self.rebalances {
            if let Rebalance::Revoked { needs_release, lost, .. } = rebalance {
                (*needs_release, *lost) = (false, true);
            }
        }
        // First, because a revoke that waits would hold it up.
        self.rebalances.insert(0, Rebalance::Overtaken);
        Some(unreleased)
    }

    fn add_assignment(&mut self, assignment: Arc<Assignment>) {
        if let Some(id) = assignment.log_id() {
            self.log_ids.insert((assignment.topic.clone(), assignment.partition), id.clone());
        }
        let topic = self.topics.entry(assignment.topic.clone()).or_default();
        topic.insert(assignment.partition, assignment);
    }

    /// Removes this assignment, unless the partition has another one or none.
    fn remove_assignment(&mut self, assignment: &Assignment) -> Option<Arc<Assignment>> {
        let (topic, partition) = (&*assignment.topic, assignment.partition);
        let started = self.topics.get(topic).and_then(|topic| topic.get(&partition));
        let mut assigned = self.awaiting_start.iter().chain(started);
        assigned.any(|of| of.id == assignment.id).then(|| self.remove(topic, partition))?
    }

    fn remove(&mut self, topic: &str, partition: i32) -> Option<Arc<Assignment>> {
        let is_it = |of: &Arc<Assignment>| &*of.topic == topic && of.partition == partition;
        match self.awaiting_start.iter().position(is_it) {
            Some(index) => Some(self.awaiting_start.swap_remove(index)),
            None => self.topics.get_mut(topic)?.remove(&partition),
        }
    }
}

impl ConsumerContext for Context {
    /// Records the rebalance. The callback does not wait for records in flight: librdkafka keeps revoked
    /// partitions assigned until [`Context::release`] is called.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer, list),
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        self.state().commits.push((result, offsets.clone()));
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    /// Does not wait for a token, because the driver's thread runs this. The token from the start is
    /// still valid when librdkafka asks for the next one.
    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.has_served.store(true, Ordering::Relaxed);
        oauth::answer(self.tokens.as_ref(), Duration::ZERO)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.has_served.store(true, Ordering::Relaxed);
        crate::log::log(&self.log_limit, level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The poll that runs this callback also returns the error, but not its text.
        let code = error.rdkafka_error_code().map(|code| code.to_string()).unwrap_or_default();
        let text = if reason.is_empty() { code } else { reason.to_owned() };
        self.state().reason = Some(text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.has_served.store(true, Ordering::Relaxed);
        crate::log::statistics(statistics);
    }
}

fn topic_partitions(partitions: &TopicPartitionList) -> impl Iterator<Item = (String, i32)> {
    let elements = partitions.elements();
    elements.into_iter().map(|element| (element.topic().to_owned(), element.partition()))
}

pub(super) struct PartitionNames<'a>(pub(super) &'a [Arc<Assignment>]);

impl std::fmt::Display for PartitionNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, assignment) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{assignment}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use campanile_core::Clock;
    use campanile_driver::source::{Event, Source as _};
    use campanile_test::MockKafka;

    use super::*;
    use crate::native;
    use crate::source::KafkaSource;
    use crate::source::tests::{settings, wait_for};

    const TOPIC: &str = "payments";
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn pending_assignment_is_handled_before_the_consumer_is_closed() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let client = kafka.consumer_config("billing");
        let source = KafkaSource::start(&settings(client.into(), TOPIC)).unwrap();
        let consumer = source.consumer.clone();
        let clock = Clock::boot();
        let deadline = clock.now() + TIMEOUT;
        while !native::is_member(&consumer) || !native::has_events(&consumer) {
            assert!(clock.now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        drop(source);
        assert!(!native::has_events(&consumer));
    }

    #[test]
    fn partition_sought_before_its_start_is_revoked() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let client = kafka.consumer_config("billing");
        let mut source = KafkaSource::start(&settings(client.into(), TOPIC)).unwrap();
        let assigned = wait_for(&mut source, None, |event| match event {
            Event::Assigned(partitions) => partitions.into_iter().next(),
            _ => None,
        });

        // The source is not polled in the meantime, so the start position is not known.
        let clock = Clock::boot();
        let deadline = clock.now() + TIMEOUT;
        let mut positions = vec![(assigned.clone(), 0)];
        let new = loop {
            let context = source.consumer.context();
            if let Some((_, new)) =
                context.seek_and_reassign(&source.consumer, &mut positions).pop()
            {
                break new;
            }
            assert!(clock.now() < deadline);
        };
        assert!(assigned.is_revoked() && !new.is_revoked());

        source.consumer.unsubscribe();
        let revoked = wait_for(&mut source, None, |event| match event {
            Event::Revoked { partitions, .. } => Some(partitions),
            _ => None,
        });
        source.release();
        assert_eq!(revoked.iter().map(|of| of.id).collect::<Vec<_>>(), [new.id]);
        assert!(new.is_revoked() && source.consumer.context().assignment(TOPIC, 0).is_none());
    }

    /// As when the session ends while partitions are drained.
    #[test]
    fn second_revoke_takes_over_the_release_of_the_first() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 2).unwrap();
        let client = kafka.consumer_config("billing");
        let mut source = KafkaSource::start(&settings(client.into(), TOPIC)).unwrap();
        let assigned = wait_for(&mut source, None, |event| match event {
            Event::Assigned(partitions) => Some(partitions).filter(|them| them.len() == 2),
            _ => None,
        });
        let revoked = |event| match event {
            Event::Revoked { partitions, lost } => Some((partitions[0].id, lost)),
            _ => None,
        };
        let revoke = |source: &KafkaSource, of: &Arc<Assignment>| {
            let list = list(std::slice::from_ref(of), Offset::Invalid);
            source.consumer.context().revoke(&source.consumer, &list);
        };
        let unreleased = |source: &KafkaSource| {
            source.consumer.context().state().unreleased.as_ref().map_or(0, |list| list.count())
        };

        let [first, second] = [&assigned[0], &assigned[1]];
        revoke(&source, first);
        assert_eq!(wait_for(&mut source, None, revoked), (first.id, false));
        revoke(&source, second);
        assert_eq!(wait_for(&mut source, None, revoked), (first.id, true));
        source.release();
        assert_eq!(unreleased(&source), 2);
        assert_eq!(wait_for(&mut source, None, revoked), (second.id, false));
        source.release();
        assert_eq!(unreleased(&source), 0);
    }
}
