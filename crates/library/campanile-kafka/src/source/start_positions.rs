//! The lookup of the offsets at which assigned partitions are started.
//!
//! librdkafka (2.12) looks them up by itself, but incorrectly in two cases:
//!
//! * While a committed offset is pending in an open transaction, librdkafka repeats its request; if the
//!   assignment changes in the meantime, it starts the partition as if no offset were committed.
//! * If a partition without a committed offset is revoked while its first offset is looked up,
//!   librdkafka repeats that request as well, and then fetches the partition although it is not
//!   assigned. These records are delivered when the partition is assigned again, whatever offset has
//!   been committed since.
//!
//! In both cases a partition is read from where `auto.offset.reset` says: with `earliest`, records are
//! repeated, and with `latest`, records are lost. This module therefore determines the offsets, and the
//! source seeks to them.
//!
//! A committed offset is only valid in the topic that it was committed for. If the topic was recreated since,
//! the new one is read from its beginning: the group has read none of it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{io, thread};

use campanile_driver::source::{Assignment, LogChange, LogChanged};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::context::Context;
use crate::list_offsets::{list, list_offsets};
use crate::native;
use crate::native::SourceWaker;
use crate::native::topic_ids::TopicIds;
use crate::offset_identity::log_ids;
use crate::seek::Position;
use crate::topic_ids::request_ids;

/// The timeout of the request for committed offsets. A request that times out is repeated.
///
/// While a transaction with committed offsets is open, librdkafka repeats the request within a call,
/// and goes on with it after the timeout. So a short timeout would add up to many requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of the first request for the ids of topics. It is short, because another broker is asked next.
const ID_TIMEOUT: Duration = Duration::from_millis(500);

/// The delay before offsets that could not be looked up are requested again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Looks up start positions.
pub(super) struct StartPositions {
    consumer: Arc<BaseConsumer<Context>>,
    /// The offset to look up if none is committed: [`Offset::Invalid`] if that is an error.
    reset: Offset,
    sender: Sender<Lookup>,
    lookups: Receiver<Lookup>,
    waker: SourceWaker,
}

/// The result of a lookup.
pub(super) enum Lookup {
    Found(Position),
    /// The committed offset is one of an earlier topic. The lookup continues.
    Recreated(LogChange),
    /// No offset is committed, and `auto.offset.reset` is `error`.
    NoOffset(Arc<Assignment>),
    /// The lookup is repeated.
    Failed(KafkaError),
}

impl StartPositions {
    /// Wakes `waker` with each result.
    pub(super) fn new(
        consumer: Arc<BaseConsumer<Context>>,
        reset: Offset,
        waker: SourceWaker,
    ) -> Self {
        let (sender, lookups) = channel();
        Self { consumer, reset, sender, lookups, waker }
    }

    /// Starts the lookup of these partitions, on a thread of its own, because the requests wait for
    /// brokers. The lookup ends when the partitions are revoked or the consumer is closed.
    pub(super) fn start(&self, mut partitions: Vec<Arc<Assignment>>) -> io::Result<()> {
        let (consumer, reset) = (self.consumer.clone(), self.reset);
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let look_up = move || {
            for attempt in 0.. {
                partitions.retain(|assignment| !assignment.is_revoked());
                if partitions.is_empty() || consumer.context().is_closing() {
                    return;
                }
                let mut round = Round { sender: &sender, waker: &waker, again: Vec::new() };
                round.run(&consumer, reset, &partitions, attempt);
                partitions = round.again;
                if !partitions.is_empty() {
                    thread::sleep(RETRY_DELAY);
                }
            }
        };
        // The thread is never joined: brokers that do not respond must not delay the shutdown.
        thread::Builder::new().name("campanile-start".into()).spawn(look_up).map(drop)
    }

    /// Takes the next result, if there is any.
    pub(super) fn poll(&self) -> Option<Lookup> {
        self.lookups.try_recv().ok()
    }
}

/// One round of requests.
struct Round<'a> {
    sender: &'a Sender<Lookup>,
    waker: &'a SourceWaker,
    /// The partitions to look up again.
    again: Vec<Arc<Assignment>>,
}

impl Round<'_> {
    fn run(
        &mut self,
        consumer: &BaseConsumer<Context>,
        reset: Offset,
        partitions: &[Arc<Assignment>],
        attempt: usize,
    ) {
        let ids = request_ids(consumer.client(), partitions, attempt, ID_TIMEOUT);
        let partitions = self.identify(partitions, ids, consumer.context().cluster_id(consumer));
        if partitions.is_empty() {
            return;
        }
        let request = list(&partitions, Offset::Invalid);
        let committed = consumer.committed_offsets(request, REQUEST_TIMEOUT);
        let is_valid = |committed: &TopicPartitionList, assignment: &Arc<Assignment>| {
            let last_id = consumer.context().last_log_id(assignment);
            is_of_log(committed, assignment, last_id)
        };
        let is_new = |assignment: &&Arc<Assignment>| assignment.replaced_log_id.get().is_none();
        let unreported: Vec<_> = partitions.iter().filter(is_new).cloned().collect();
        let uncommitted = self.handle_response(&partitions, committed, is_valid);
        self.send(unreported.iter().filter_map(recreation).map(Lookup::Recreated));
        if reset == Offset::Invalid {
            return self.send(uncommitted.into_iter().map(Lookup::NoOffset));
        }
        let (recreated, new): (Vec<_>, Vec<_>) = uncommitted
            .into_iter()
            .partition(|assignment| assignment.replaced_log_id.get().is_some());
        for (partitions, offset) in [(new, reset), (recreated, Offset::Beginning)] {
            if !partitions.is_empty() {
                let is_closing = || consumer.context().is_closing();
                list_offsets(consumer, &partitions, offset, is_closing, |partitions, offsets| {
                    let unknown = self.handle_response(partitions, offsets, |_, _| true);
                    self.again.extend(unknown);
                });
            }
        }
    }

    /// Sets the id of each partition's log. Returns the partitions with a known id.
    fn identify(
        &mut self,
        partitions: &[Arc<Assignment>],
        ids: KafkaResult<TopicIds>,
        cluster_id: Option<&Arc<str>>,
    ) -> Vec<Arc<Assignment>> {
        let mut identified = Vec::new();
        let ids = ids.unwrap_or_else(|error| {
            self.send([Lookup::Failed(error)]);
            TopicIds::new()
        });
        for assignment in partitions {
            match ids.get(&*assignment.topic) {
                Some(Ok(id)) => {
                    assignment.log_id.get_or_init(|| id.clone().unwrap_or_default());
                    if let Some(id) = cluster_id {
                        assignment.cluster_id.get_or_init(|| id.clone());
                    }
                    identified.push(assignment.clone());
                    continue;
                }
                Some(Err(error)) => self.send([Lookup::Failed(error.clone())]),
                None => {}
            }
            self.again.push(assignment.clone());
        }
        identified
    }

    /// Sends results at once, because other requests may wait for a broker that does not answer.
    fn send(&self, results: impl IntoIterator<Item = Lookup>) {
        for result in results {
            // Fails only if the source is gone.
            let _ = self.sender.send(result);
        }
        self.waker.wake();
    }

    /// Handles the response for these partitions. Returns the partitions without a valid offset.
    fn handle_response(
        &mut self,
        partitions: &[Arc<Assignment>],
        response: Result<TopicPartitionList, KafkaError>,
        is_valid: impl Fn(&TopicPartitionList, &Arc<Assignment>) -> bool,
    ) -> Vec<Arc<Assignment>> {
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.send([Lookup::Failed(error)]);
                self.again.extend_from_slice(partitions);
                return Vec::new();
            }
        };
        let (mut results, mut without) = (Vec::new(), Vec::new());
        for assignment in partitions {
            let element = response.find_partition(&assignment.topic, assignment.partition);
            let element = element.expect("the response has the partitions of the request");
            match element.error().map(|()| element.offset()) {
                Ok(offset) => match offset {
                    _ if !is_valid(&response, assignment) => without.push(assignment.clone()),
                    Offset::Offset(offset) => {
                        results.push(Lookup::Found((assignment.clone(), offset)));
                    }
                    _ => without.push(assignment.clone()),
                },
                Err(error) => {
                    results.push(Lookup::Failed(error));
                    self.again.push(assignment.clone());
                }
            }
        }
        self.send(results);
        without
    }
}

/// Checks whether a committed offset belongs to the partition's log, and takes over its leader epoch. An
/// offset of unknown origin belongs to the log from which this consumer has read the partition last.
fn is_of_log(
    committed: &TopicPartitionList,
    assignment: &Assignment,
    last_id: Option<Arc<str>>,
) -> bool {
    let (topic, partition) = (&*assignment.topic, assignment.partition);
    let (epoch, metadata) = native::offset_details(committed, topic, partition);
    let previous = match log_ids(metadata) {
        // It was translated, and committed for this topic, by a tool such as MirrorMaker.
        Some((_, Some(cluster)))
            if assignment.cluster_id.get().is_some_and(|own| **own != *cluster) =>
        {
            None
        }
        Some((id, _)) => Some(id.into()),
        None => last_id,
    };
    if let (Some(id), Some(previous)) = (assignment.log_id(), previous)
        && *id != previous
    {
        assignment.replaced_log_id.get_or_init(|| previous);
        return false;
    }
    assignment.set_leader_epoch(epoch);
    true
}

fn recreation(assignment: &Arc<Assignment>) -> Option<LogChange> {
    let (old_id, new_id) =
        (assignment.replaced_log_id.get()?.clone(), assignment.log_id()?.clone());
    let what = LogChanged::Recreated { old_id, new_id };
    Some(LogChange { partition: assignment.clone(), what })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use campanile_core::Clock;
    use campanile_driver::source::{Amount, Event, Source as _};
    use campanile_test::{Message, MockKafka};
    use rdkafka::consumer::CommitMode;
    use rdkafka::mocking::MockCoordinator;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::source::KafkaSource;
    use crate::source::tests::{assignment, consumer, poll, settings};

    const TIMEOUT: Duration = Duration::from_secs(60);
    const TOPIC: &str = "payments";
    const PARTITIONS: i32 = 2;
    const ROOM: Amount = Amount { records: 100, bytes: 1_000_000 };

    /// The duration of a request to the leader of the partitions.
    const LEADER_DELAY: Duration = Duration::from_millis(400);

    /// The duration of a request to the group's coordinator while the partitions return.
    const COORDINATOR_DELAY: Duration = Duration::from_millis(100);

    struct Member {
        source: KafkaSource,
        assigned: usize,
        /// The offset of the first record of each partition since it was assigned.
        first: BTreeMap<i32, i64>,
    }

    impl Member {
        /// Polls the source, and releases revoked partitions from `release_at` on.
        fn poll(&mut self, room: Option<Amount>, release_at: Duration) {
            for event in poll(&mut self.source, room) {
                match event {
                    Event::Assigned(partitions) => {
                        self.assigned += partitions.len();
                        self.first.clear();
                    }
                    Event::Revoked { partitions, .. } => {
                        self.assigned -= partitions.len();
                        thread::sleep(release_at.saturating_sub(Clock::boot().now()));
                        self.source.release();
                    }
                    Event::Records(records) => {
                        for received in records {
                            let (partition, offset) =
                                (received.record.partition(), received.record.offset());
                            self.first.entry(partition).or_insert(offset);
                        }
                    }
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn broker_that_does_not_answer_delays_only_its_partitions() {
        let kafka = MockKafka::start(2).unwrap();
        let leaders = [2, 2, 1, 1];
        kafka.create_topic(TOPIC, 4).unwrap();
        let group = MockCoordinator::Group("billing".to_owned());
        kafka.cluster().coordinator(group, 1).unwrap();
        for (partition, leader) in (0..).zip(leaders) {
            kafka.cluster().partition_leader(TOPIC, partition, Some(leader)).unwrap();
        }
        let mut client = kafka.consumer_config("billing");
        let mut committed = TopicPartitionList::new();
        committed.add_partition_offset(TOPIC, 3, Offset::Offset(2)).unwrap();
        let other: BaseConsumer = client.create().unwrap();
        other.commit(&committed, CommitMode::Sync).unwrap();
        drop(other);
        // The consumer knows its coordinator through the other broker.
        kafka.cluster().broker_round_trip_time(2, Duration::from_secs(3600)).unwrap();
        let bootstrap = kafka.bootstrap();
        client.set("bootstrap.servers", bootstrap.split(',').next().unwrap());
        let consumer = consumer(&client);
        let start_positions =
            StartPositions::new(consumer.clone(), Offset::Beginning, SourceWaker::default());
        let partitions = (0..4).map(|partition| assignment(TOPIC, partition));
        start_positions.start(partitions.collect()).unwrap();
        let next = || match start_positions.lookups.recv_timeout(TIMEOUT).unwrap() {
            Lookup::Found((assignment, offset)) => Some((assignment.partition, offset)),
            Lookup::Recreated(change) => panic!("{}", change.partition),
            Lookup::NoOffset(assignment) => panic!("{assignment}"),
            Lookup::Failed(_) => None,
        };
        // The broker may be asked for the topic's id, before the other one.
        let first = std::iter::repeat_with(next).find_map(|found| found);
        assert_eq!((first, next()), (Some((3, 2)), Some((2, 0))));
        assert_eq!([next(), next()], [None; 2]);
        // Ends the lookup.
        consumer.context().close(&consumer);
    }

    #[test]
    fn recreated_topic_is_reported_once_although_its_start_is_requested_again() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let client = kafka.consumer_config("billing");
        let mut committed = TopicPartitionList::new();
        let mut element = committed.add_partition(TOPIC, 0);
        element.set_offset(Offset::Offset(5)).unwrap();
        element.set_metadata("topic-id=AAAAAAAAAAAAAAAAAAAAAQ");
        let other: BaseConsumer = client.create().unwrap();
        other.commit(&committed, CommitMode::Sync).unwrap();
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        kafka.cluster().request_errors(RDKafkaApiKey::ListOffsets, &[refused; 3]);
        let start_positions =
            StartPositions::new(consumer(&client), Offset::End, SourceWaker::default());
        start_positions.start(vec![assignment(TOPIC, 0)]).unwrap();
        let mut reports = 0;
        let start = loop {
            match start_positions.lookups.recv_timeout(TIMEOUT).unwrap() {
                Lookup::Found((_, offset)) => break offset,
                Lookup::Recreated(_) => reports += 1,
                Lookup::NoOffset(assignment) => panic!("{assignment}"),
                Lookup::Failed(_) => {}
            }
        };
        assert_eq!((start, reports), (0, 1));
    }

    /// On its own, librdkafka delivers the records that it has fetched without an assignment.
    #[test]
    fn revoke_during_the_lookup_resets_no_offset() {
        let kafka = MockKafka::start(2).unwrap();
        kafka.create_topic(TOPIC, PARTITIONS).unwrap();
        let group = MockCoordinator::Group("billing".to_owned());
        kafka.cluster().coordinator(group, 1).unwrap();
        for partition in 0..PARTITIONS {
            kafka.cluster().partition_leader(TOPIC, partition, Some(2)).unwrap();
            let message = |id| Message::to(TOPIC).partition(partition).payload(format!("{id}"));
            kafka.producer().produce_all((0..3).map(message)).unwrap();
        }
        let mut client = kafka.consumer_config("billing");
        // The partitions have to be moved while their offsets are still looked up.
        client.set("session.timeout.ms", "1500");
        let other: BaseConsumer = client.create().unwrap();
        other.fetch_metadata(Some(TOPIC), TIMEOUT).unwrap();
        let source = KafkaSource::start(&settings(client.into(), TOPIC)).unwrap();
        kafka.cluster().broker_round_trip_time(2, LEADER_DELAY).unwrap();
        let mut member = Member { source, assigned: 0, first: BTreeMap::new() };
        let clock = Clock::boot();
        let deadline = clock.now() + TIMEOUT;
        let at_once = Duration::ZERO;
        while member.assigned == 0 {
            assert!(clock.now() < deadline);
            member.poll(None, at_once);
        }

        // Another member joins. The partitions are released while their first offset is looked up:
        // librdkafka sends the request after 100 ms.
        let release_at = clock.now() + Duration::from_millis(200);
        other.subscribe(&[TOPIC]).unwrap();
        while member.assigned != 1 || other.assignment().unwrap().count() != 1 {
            assert!(clock.now() < deadline);
            let _ = other.poll(Duration::from_millis(1));
            member.poll(None, release_at);
        }
        // In this time, librdkafka would repeat the lookup after 500 ms, and fetch the partition of the
        // other member.
        let fetched_by = clock.now() + Duration::from_millis(500) + 6 * LEADER_DELAY;
        while clock.now() < fetched_by {
            let _ = other.poll(Duration::from_millis(1));
            member.poll(None, at_once);
        }

        let mut offsets = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            offsets.add_partition_offset(TOPIC, partition, Offset::Offset(2)).unwrap();
        }
        other.commit(&offsets, CommitMode::Sync).unwrap();
        // librdkafka would deliver what it has fetched until it knows the committed offset.
        kafka.cluster().broker_round_trip_time(1, COORDINATOR_DELAY).unwrap();
        drop(other);
        while member.assigned != 2 || member.first.len() != 2 {
            assert!(clock.now() < deadline);
            member.poll(Some(ROOM), at_once);
        }
        assert_eq!(member.first, BTreeMap::from([(0, 2), (1, 2)]));
    }
}
