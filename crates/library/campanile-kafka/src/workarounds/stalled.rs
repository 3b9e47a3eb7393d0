//! Finds partitions from which librdkafka does not fetch.
//!
//! librdkafka may drop the start of an assigned partition if partitions are paused and resumed at the
//! same time. It then answers each seek of it with an error.
//!
//! librdkafka may fetch nothing more from a partition after its broker was restarted, without an
//! error: <https://github.com/confluentinc/librdkafka/issues/4492>. The end of the partition is known
//! from fetches only, so that its lag would not grow either. This module therefore asks the brokers for
//! the ends of partitions that deliver no records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use campanile_driver::source::{Assignment, AssignmentId};
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use tokio::time::Instant;

use crate::list_offsets::list_offsets;
use crate::native;

/// How long a partition delivers no record until the brokers are asked for its end.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a partition may be assigned without being started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long librdkafka may take to fetch a record that the brokers have.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Observes the assigned partitions.
pub(crate) struct StalledPartitions<C: ConsumerContext> {
    consumer: Arc<BaseConsumer<C>>,
    is_closing: fn(&C) -> bool,
    progress: HashMap<AssignmentId, Progress>,
    paused: HashSet<AssignmentId>,
    /// The responses to the last question, while it is being asked.
    responses: Option<Receiver<Ends>>,
}

/// The ends of partitions, without those that the brokers did not tell.
type Ends = Vec<(AssignmentId, i64)>;

/// The partitions that librdkafka does not fetch from.
#[derive(Default)]
pub(crate) struct Unfetched {
    /// Those that it has started.
    pub(crate) stalled: Vec<Arc<Assignment>>,
    pub(crate) unstarted: Vec<Arc<Assignment>>,
}

/// The progress of a partition since it was seen last.
struct Progress {
    next: Option<i64>,
    /// The partition's end by the last fetch.
    fetched_end: Option<i64>,
    since: Instant,
    /// The partition's end by the brokers, if it is beyond that of the last fetch, and since when that is
    /// known.
    behind: Option<(i64, Instant)>,
    /// The partition's end by the brokers, if it was fetched without a record.
    complete_to: Option<i64>,
    /// How often the partition was sought, because it was stalled.
    seeks: u32,
}

impl<C: ConsumerContext + 'static> StalledPartitions<C> {
    /// No more requests are sent once `is_closing`.
    pub(crate) fn new(consumer: Arc<BaseConsumer<C>>, is_closing: fn(&C) -> bool) -> Self {
        let (progress, paused, responses) = Default::default();
        Self { consumer, is_closing, progress, paused, responses }
    }

    /// Ignores these partitions, which are paused.
    pub(crate) fn pause(&mut self, partitions: &[Arc<Assignment>]) {
        self.paused.extend(partitions.iter().map(|assignment| assignment.id));
    }

    pub(crate) fn resume(&mut self, partitions: &[Arc<Assignment>]) {
        for assignment in partitions {
            self.paused.remove(&assignment.id);
        }
    }

    pub(crate) fn is_paused(&self, assignment: &Assignment) -> bool {
        self.paused.contains(&assignment.id)
    }

    /// Starts again, because no records are taken from librdkafka now.
    pub(crate) fn reset(&mut self) {
        self.progress.clear();
    }

    /// Updates the ends of these partitions, and returns those that are not fetched. Must be called about
    /// once a second, with all partitions.
    pub(crate) fn check(&mut self, partitions: &[Arc<Assignment>]) -> Unfetched {
        let now = Instant::now();
        let ids: HashSet<_> = partitions.iter().map(|assignment| assignment.id).collect();
        self.progress.retain(|id, _| ids.contains(id));
        self.paused.retain(|id| ids.contains(id));
        for (id, end) in self.take_ends() {
            if let Some(progress) = self.progress.get_mut(&id) {
                match progress.fetched_end.is_none_or(|fetched| fetched < end) {
                    true => progress.behind = Some((end, now)),
                    false => (progress.since, progress.complete_to) = (now, Some(end)),
                }
            }
        }
        let (mut silent, mut unfetched) = (Vec::new(), Unfetched::default());
        for assignment in partitions.iter().filter(|assignment| !assignment.is_revoked()) {
            let range = native::log_range(&self.consumer, &assignment.topic, assignment.partition);
            let fetched_end = range.map(|(_, end)| end);
            let next = assignment.offset_range.next();
            let (behind, complete_to, seeks) = Default::default();
            let new = || Progress { next, fetched_end, since: now, behind, complete_to, seeks };
            let progress = self.progress.entry(assignment.id).or_insert_with(new);
            let is_same = (progress.next, progress.fetched_end) == (next, fetched_end);
            // Before it is started, a partition is paused too.
            if assignment.offset_range.position().is_none() {
                if now - progress.since >= START_TIMEOUT {
                    *progress = new();
                    unfetched.unstarted.push(assignment.clone());
                }
                continue;
            }
            if !is_same || self.paused.contains(&assignment.id) {
                *progress = new();
                assignment.set_unfetched(false);
            }
            // Otherwise, records may have been deleted before they were read.
            let offset_range = &assignment.offset_range;
            let read_to = offset_range.position().max(offset_range.complete_to());
            let is_whole = range.map(|(start, _)| start) <= read_to;
            if let Some(end) = progress.complete_to.filter(|_| is_whole) {
                offset_range.set_complete_to(end);
            }
            let end = progress.behind.map(|(end, _)| end).max(fetched_end);
            if let Some(end) = end {
                assignment.offset_range.set_end(end);
            }
            match progress.behind {
                Some((_, since)) if now - since >= FETCH_TIMEOUT => {
                    // A seek has not helped, and nothing else will.
                    assignment.set_unfetched(progress.seeks > 0);
                    let seeks = progress.seeks + 1;
                    *progress = Progress { since: now, behind: None, seeks, ..*progress };
                    unfetched.stalled.push(assignment.clone());
                }
                None if now - progress.since >= SILENCE => silent.push(assignment.clone()),
                _ => {}
            }
        }
        if !silent.is_empty() && self.responses.is_none() {
            self.ask(silent);
        }
        unfetched
    }

    /// Takes the ends that have arrived.
    fn take_ends(&mut self) -> Ends {
        let mut ends = Ends::new();
        while let Some(responses) = &self.responses {
            match responses.try_recv() {
                Ok(response) => ends.extend(response),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.responses = None,
            }
        }
        ends
    }

    /// Asks the brokers for the ends of these partitions, on a thread of its own, because the request
    /// waits for them. Each response is sent as it arrives; the sender is dropped after the last one.
    fn ask(&mut self, partitions: Vec<Arc<Assignment>>) {
        let consumer = self.consumer.clone();
        let (is_closing, (sender, responses)) = (self.is_closing, channel());
        let request = move || {
            let is_closing = || is_closing(consumer.context());
            list_offsets(
                &consumer,
                &partitions,
                Offset::End,
                is_closing,
                |partitions, response| {
                    let Ok(response) = response else { return };
                    let end = |assignment: &Arc<Assignment>| {
                        let element =
                            response.find_partition(&assignment.topic, assignment.partition)?;
                        match (element.error(), element.offset()) {
                            (Ok(()), Offset::Offset(end)) => Some((assignment.id, end)),
                            _ => None,
                        }
                    };
                    // Fails only if the source is gone.
                    let _ = sender.send(partitions.iter().filter_map(end).collect());
                },
            );
        };
        // The thread is never joined: brokers that do not respond must not delay the shutdown.
        match thread::Builder::new().name("campanile-ends".into()).spawn(request) {
            Ok(_) => self.responses = Some(responses),
            Err(error) => tracing::warn!(%error, "failed to spawn a thread"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use campanile_core::Clock;
    use campanile_driver::source::{Amount, Event, LogChanged, Source as _};
    use campanile_test::{KafkaAdmin, KafkaServer, Message, MockKafka, eventually};
    use rdkafka::consumer::CommitMode;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use rdkafka::{ClientConfig, TopicPartitionList};

    use super::*;
    use crate::list_offsets::list;
    use crate::source::KafkaSource;
    use crate::source::tests::{assignment, consumer, poll, settings};

    const TOPIC: &str = "payments";
    const ROOM: Amount = Amount { records: 100, bytes: 1_000_000 };
    /// Long enough that the consumer keeps its partition on a busy machine.
    const SESSION_TIMEOUT_MS: &str = "60000";
    /// Each millisecond counts as a second.
    const TIMEOUT: Duration = Duration::from_secs(100_000);

    fn start(mut client: ClientConfig) -> KafkaSource {
        client.set("session.timeout.ms", SESSION_TIMEOUT_MS);
        KafkaSource::start(&settings(client.into(), TOPIC)).unwrap()
    }

    fn produce(kafka: &MockKafka) {
        kafka.producer().produce(Message::to(TOPIC).partition(0).payload("1")).unwrap();
    }

    /// Starts brokers with a topic of one record.
    fn with_record() -> MockKafka {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        produce(&kafka);
        kafka
    }

    /// Polls the source, once a second, until it has delivered a record. Returns how long that took.
    async fn read(source: &mut KafkaSource, partitions: &mut Vec<Arc<Assignment>>) -> Duration {
        let start = Instant::now();
        loop {
            for event in poll(source, Some(ROOM)) {
                match event {
                    Event::Assigned(assigned) => partitions.extend(assigned),
                    Event::Records(records) => {
                        assert_eq!(records.len(), 1);
                        return start.elapsed();
                    }
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            source.tick(partitions);
            assert!(start.elapsed() < TIMEOUT, "no record was delivered");
            tokio::time::advance(Duration::from_secs(1)).await;
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_partition_that_has_delivered_nothing_skips_no_record() {
        let kafka = with_record();
        let mut client = kafka.consumer_config("billing");
        client.set("auto.offset.reset", "latest");
        let mut source = start(client);
        let mut partitions = Vec::new();
        let start = Instant::now();
        while partitions.iter().all(|it: &Arc<Assignment>| it.offset_range.position().is_none()) {
            assert!(start.elapsed() < TIMEOUT, "the partition was not started");
            for event in poll(&mut source, Some(ROOM)) {
                match event {
                    Event::Assigned(assigned) => partitions.extend(assigned),
                    _ => panic!("nothing is delivered"),
                }
            }
            tokio::time::advance(Duration::from_secs(1)).await;
            thread::sleep(Duration::from_millis(1));
        }

        // The source does not know of this pause.
        source.consumer.pause(&list(&partitions, Offset::Invalid)).unwrap();
        produce(&kafka);
        assert!(read(&mut source, &mut partitions).await >= SILENCE + FETCH_TIMEOUT);
        assert_eq!(partitions[0].offset_range.next(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_partition_is_read_again() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let mut source = start(kafka.consumer_config("billing"));
        let mut partitions = Vec::new();
        let message = || Message::to(TOPIC).partition(0).payload("1");
        kafka.producer().produce_all([message()]).unwrap();
        read(&mut source, &mut partitions).await;

        // librdkafka does not fetch from a paused partition, and the source does not know of this pause.
        source.consumer.pause(&list(&partitions, Offset::Invalid)).unwrap();
        kafka.producer().produce_all([message()]).unwrap();
        assert!(read(&mut source, &mut partitions).await >= SILENCE + FETCH_TIMEOUT);
        assert_eq!(partitions[0].offset_range.next(), Some(2));

        // The source knows of this pause.
        source.pause(&partitions);
        kafka.producer().produce_all([message()]).unwrap();
        let start = Instant::now();
        while start.elapsed() < 10 * SILENCE {
            assert!(source.stalled.check(&partitions).stalled.is_empty());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_partition_that_a_seek_does_not_bring_back_is_not_live() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let mut source = start(kafka.consumer_config("billing"));
        let mut partitions = Vec::new();
        produce(&kafka);
        read(&mut source, &mut partitions).await;

        // The source does not know of this pause, and its seeks are not made.
        source.consumer.pause(&list(&partitions, Offset::Invalid)).unwrap();
        produce(&kafka);
        let start = Instant::now();
        while !partitions[0].is_unfetched() {
            source.tick(&partitions);
            source.starts.clear();
            assert!(poll(&mut source, Some(ROOM)).is_empty());
            assert!(start.elapsed() < TIMEOUT, "the partition is still considered fetched");
            tokio::time::advance(Duration::from_secs(1)).await;
            thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= 2 * (SILENCE + FETCH_TIMEOUT));
        source.consumer.resume(&list(&partitions, Offset::Invalid)).unwrap();
        read(&mut source, &mut partitions).await;
        source.tick(&partitions);
        assert!(!partitions[0].is_unfetched());
    }

    #[tokio::test(start_paused = true)]
    async fn partition_whose_start_librdkafka_has_lost_is_not_live() {
        let kafka = with_record();
        let mut source = start(kafka.consumer_config("billing"));
        let mut partitions: Vec<Arc<Assignment>> = Vec::new();
        while source.starts.is_empty() {
            for event in poll(&mut source, Some(ROOM)) {
                let Event::Assigned(assigned) = event else { panic!("nothing is delivered") };
                // A seek to the start has failed.
                source.starts.extend(assigned.iter().map(|assignment| (assignment.clone(), 0)));
                partitions.extend(assigned);
            }
        }
        let mut seconds = 0;
        while !partitions[0].is_unfetched() {
            assert!(seconds < 1_000, "the consumer is still live");
            tokio::time::advance(Duration::from_secs(1)).await;
            source.tick(&partitions);
            seconds += 1;
        }
        assert!(seconds >= 60);
        read(&mut source, &mut partitions).await;
        assert!(!partitions[0].is_unfetched());
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_partition_that_is_paused_before_its_seek_stays_paused() {
        let kafka = with_record();
        let mut source = start(kafka.consumer_config("billing"));
        let mut partitions = Vec::new();
        read(&mut source, &mut partitions).await;

        // The source does not know of this pause.
        source.consumer.pause(&list(&partitions, Offset::Invalid)).unwrap();
        produce(&kafka);
        let start = Instant::now();
        while source.starts.is_empty() {
            source.tick(&partitions);
            assert!(start.elapsed() < TIMEOUT, "the partition did not stall");
            tokio::time::advance(Duration::from_secs(1)).await;
            thread::sleep(Duration::from_millis(1));
        }
        source.pause(&partitions);
        for _ in 0..1000 {
            assert!(poll(&mut source, Some(ROOM)).is_empty());
            thread::sleep(Duration::from_millis(1));
        }
        source.resume(&partitions);
        read(&mut source, &mut partitions).await;
        assert_eq!(partitions[0].offset_range.next(), Some(2));
    }

    /// A seek may fail, and librdkafka may fetch the partition again before the seek is repeated.
    #[tokio::test(start_paused = true)]
    async fn stalled_partition_that_was_read_before_its_seek_repeats_no_record() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 1).unwrap();
        let mut source = start(kafka.consumer_config("billing"));
        let mut partitions = Vec::new();
        produce(&kafka);
        read(&mut source, &mut partitions).await;

        let position = partitions[0].offset_range.position().unwrap();
        produce(&kafka);
        read(&mut source, &mut partitions).await;
        source.starts.push((partitions[0].clone(), position));
        produce(&kafka);
        read(&mut source, &mut partitions).await;
        assert_eq!(partitions[0].offset_range.next(), Some(3));
    }

    /// Deletes the records before this offset while nothing is delivered, and produces a further one.
    /// Returns the change of the log that its delivery reports.
    async fn change_after_silence(
        kafka: &KafkaServer,
        source: &mut KafkaSource,
        partitions: &mut Vec<Arc<Assignment>>,
        delete_before: i64,
    ) -> Option<LogChanged> {
        let clock = Clock::boot();
        let deadline = clock.now() + Duration::from_secs(60);
        while source.stalled.progress.values().all(|of| of.complete_to.is_none()) {
            for event in poll(source, Some(ROOM)) {
                match event {
                    Event::Assigned(assigned) => partitions.extend(assigned),
                    _ => panic!("nothing is delivered"),
                }
            }
            // Before that, librdkafka would be considered stalled.
            if native::log_range(&source.consumer, TOPIC, 0).is_some() {
                source.tick(partitions);
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            assert!(clock.now() < deadline, "the end of the log is not known");
            thread::sleep(Duration::from_millis(1));
        }
        KafkaAdmin::new(kafka.bootstrap()).delete_records(TOPIC, 0, delete_before).unwrap();
        kafka.producer().produce(Message::to(TOPIC).partition(0).payload("1")).unwrap();
        let delivery = || {
            let events = poll(source, Some(ROOM));
            events.iter().any(|event| matches!(event, Event::Records(_))).then_some(events)
        };
        let events = eventually(Duration::from_secs(60), delivery).unwrap();
        events.into_iter().find_map(|event| match event {
            Event::LogChanged(change) => Some(change.what),
            _ => None,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_marker_at_the_end_of_a_log_is_no_deleted_record() {
        let kafka = KafkaServer::start().unwrap();
        kafka.create_topic(TOPIC, 1, &[]).unwrap();
        let mut producer = ClientConfig::new();
        producer.set("bootstrap.servers", kafka.bootstrap()).set("transactional.id", "billing");
        let producer: BaseProducer = producer.create().unwrap();
        producer.init_transactions(TIMEOUT).unwrap();
        producer.begin_transaction().unwrap();
        producer.send(BaseRecord::<(), _>::to(TOPIC).partition(0).payload("1")).unwrap();
        producer.commit_transaction(TIMEOUT).unwrap();
        let (mut source, mut partitions) = (start(kafka.consumer_config("reads")), Vec::new());
        read(&mut source, &mut partitions).await;
        assert_eq!(partitions[0].offset_range.next(), Some(1));
        let change = change_after_silence(&kafka, &mut source, &mut partitions, 2).await;
        assert_eq!(change, None);
        drop(source);

        // A silence after the log was emptied does not hide that.
        let other: BaseConsumer = kafka.consumer_config("stopped").create().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(TOPIC, 0, Offset::Offset(0)).unwrap();
        other.commit(&offsets, CommitMode::Sync).unwrap();
        KafkaAdmin::new(kafka.bootstrap()).delete_records(TOPIC, 0, 3).unwrap();
        let (mut source, mut partitions) = (start(kafka.consumer_config("stopped")), Vec::new());
        let change = change_after_silence(&kafka, &mut source, &mut partitions, 3).await;
        assert_eq!(change, Some(LogChanged::Deleted { position: 0, start: 3 }));
    }

    #[tokio::test(start_paused = true)]
    async fn partition_that_is_not_started_is_reported_every_half_minute() {
        let kafka = MockKafka::start(1).unwrap();
        let mut stalled =
            StalledPartitions::new(consumer(&kafka.consumer_config("billing")), |_| false);
        let assigned = [assignment("payments", 0)];
        let mut reports = Vec::new();
        for second in 0..100 {
            let unstarted = stalled.check(&assigned).unstarted;
            reports.extend(unstarted.iter().map(|_| second));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(reports, [30, 60, 90]);
    }

    #[test]
    fn end_is_known_before_the_requests_for_other_partitions_have_ended() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic(TOPIC, 2).unwrap();
        let mut stalled =
            StalledPartitions::new(consumer(&kafka.consumer_config("billing")), |_| false);
        // The request for both partitions fails, so each is then requested by itself.
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        kafka.cluster().request_errors(RDKafkaApiKey::ListOffsets, &[refused]);
        stalled.ask((0..2).map(|partition| assignment(TOPIC, partition)).collect());
        let responses = stalled.responses.take().unwrap();
        let next = || responses.recv_timeout(Duration::from_secs(60));
        assert_eq!([next().unwrap().len(), next().unwrap().len()], [1, 1]);
        assert_eq!(next(), Err(RecvTimeoutError::Disconnected));
    }
}
