//! librdkafka's consumer, as the [`Source`](campanile_driver::source::Source) of the driver.
//!
//! * `kafka_source` is the source itself; `context` has librdkafka's callbacks.
//! * `queues` decides which partitions share a queue of librdkafka.
//! * `fetch_batch` has the records of one round; `errors` handles errors that librdkafka reports in their
//!   place.
//! * `start` waits for brokers and topics, and joins the group.
//! * `message` converts messages to records; `to_record` does so for applications with a consumer
//!   loop of their own.
//! * `certificate` warns before the client's certificate expires.
//! * `start_positions` finds the offsets at which assigned partitions are started; `look_up` finds the
//!   offset that a seek goes to.
//! * `topic_check` finds out whether a topic was deleted and recreated.
//! * `commit_result` interprets the failures of commits.

mod certificate;
mod commit_result;
mod context;
mod errors;
mod fetch_batch;
mod kafka_source;
mod look_up;
mod message;
mod queues;
mod start;
mod start_positions;
mod to_record;
mod topic_check;

use std::sync::Arc;
use std::time::Duration;

use campanile_driver::SourceContext;

pub(crate) use self::kafka_source::KafkaSource;
pub(crate) use self::start::start;
pub use self::to_record::ToRecord;
use crate::client::ClientSettings;
use crate::epilogue::RetryTopicList;
use crate::log::LogLimit;
use crate::transaction::TransactionSettings;

/// The settings of the source.
pub(crate) struct Settings {
    pub(crate) client: ClientSettings,
    pub(crate) brokers: String,
    pub(crate) topics: Vec<String>,
    /// The retry topics among `topics`.
    pub(crate) retry_topics: RetryTopicList,
    /// Further topics that must exist.
    pub(crate) dead_letter_topics: Vec<Arc<str>>,
    pub(crate) start_timeout: Duration,
    pub(crate) context: SourceContext,
    /// The limit of the log, shared by clients that are created one after the other.
    pub(crate) log_limit: LogLimit,
    /// Present if offsets are committed in transactions.
    pub(crate) transactions: Option<TransactionSettings>,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::task;

    use campanile_core::Clock;
    use campanile_driver::source::{Amount, Assignment, CommitResult, CommitStart, Event, Source};
    use campanile_test::source::{self, SourceFixture};
    use campanile_test::{Message, MockKafka};
    use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::{Offset, TopicPartitionList};

    use super::commit_result::Uncommitted;
    use super::context::Context;
    use super::*;
    use crate::native::SourceWaker;
    use crate::native::fetch_queues::FetchQueues;

    pub(crate) fn settings(client: ClientSettings, topic: &str) -> Settings {
        Settings {
            client,
            brokers: String::new(),
            topics: vec![topic.to_owned()],
            retry_topics: RetryTopicList::default(),
            dead_letter_topics: Vec::new(),
            start_timeout: Duration::from_secs(60),
            log_limit: LogLimit::default(),
            context: SourceContext::default(),
            transactions: None,
        }
    }

    /// Creates a consumer that has not subscribed to any topic.
    pub(crate) fn consumer(client: &ClientConfig) -> Arc<BaseConsumer<Context>> {
        let queues = Arc::new(FetchQueues::new(SourceWaker::default()));
        let context = Context::new(queues, &settings(ClientSettings::default(), "t"));
        Arc::new(client.create_with_context(context).unwrap())
    }

    pub(crate) fn assignment(topic: &str, partition: i32) -> Arc<Assignment> {
        Arc::new(SourceContext::default().assignment(topic, partition))
    }

    /// Polls the source, with room for this much. Returns its events.
    pub(crate) fn poll(source: &mut KafkaSource, room: Option<Amount>) -> Vec<Event> {
        let mut events = Vec::new();
        source.poll(&mut task::Context::from_waker(task::Waker::noop()), room, &mut events);
        events
    }

    /// A source over the mock cluster.
    struct Mocked {
        kafka: MockKafka,
        consumer: Option<Arc<BaseConsumer<Context>>>,
    }

    impl SourceFixture for Mocked {
        fn join(&mut self, context: &SourceContext) -> Box<dyn Source> {
            let client = self.kafka.consumer_config("billing").into();
            let settings = Settings { context: context.clone(), ..settings(client, "payments") };
            let source = KafkaSource::start(&settings).unwrap();
            self.consumer = Some(source.consumer.clone());
            Box::new(source)
        }

        fn produce(&mut self, partition: i32, records: usize) {
            for _ in 0..records {
                let message = Message::to("payments").partition(partition).payload("a payment");
                self.kafka.producer().produce(message).unwrap();
            }
        }

        fn revoke(&mut self) {
            self.consumer.as_ref().unwrap().unsubscribe();
        }

        fn assign(&mut self) {
            self.consumer.as_ref().unwrap().subscribe(&["payments"]).unwrap();
        }

        fn committed(&mut self, partition: i32) -> Option<i64> {
            let client: BaseConsumer = self.kafka.consumer_config("billing").create().unwrap();
            let mut partitions = TopicPartitionList::new();
            partitions.add_partition("payments", partition);
            let committed = client.committed_offsets(partitions, Duration::from_secs(30)).unwrap();
            match committed.elements()[0].offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            }
        }
    }

    #[tokio::test]
    async fn source_keeps_the_contract() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 2).unwrap();
        source::run(Mocked { kafka, consumer: None }).await;
    }

    /// Polls the source, with room for this much, until `select` returns a value for one of its events.
    pub(crate) fn wait_for<T>(
        source: &mut KafkaSource,
        room: Option<Amount>,
        mut select: impl FnMut(Event) -> Option<T>,
    ) -> T {
        let clock = Clock::boot();
        let deadline = clock.now() + Duration::from_secs(60);
        loop {
            if let Some(selected) = poll(source, room).into_iter().find_map(&mut select) {
                return selected;
            }
            assert!(clock.now() < deadline, "waited in vain");
        }
    }

    #[test]
    fn revoked_partition_is_released_after_its_commit_has_ended() {
        let room = Some(Amount { records: 100, bytes: 1_000_000 });
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        kafka.producer().produce(Message::to("payments").payload("a payment")).unwrap();
        let client = kafka.consumer_config("billing").into();
        let mut source = KafkaSource::start(&settings(client, "payments")).unwrap();
        let assignment = wait_for(&mut source, None, |event| match event {
            Event::Assigned(partitions) => partitions.into_iter().next(),
            _ => None,
        });
        wait_for(&mut source, room, |event| matches!(event, Event::Records(_)).then_some(()));

        kafka.cluster().broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
        assignment.advance(1);
        let offsets = Uncommitted::of(std::slice::from_ref(&assignment));
        assert_eq!(source.commit_offsets(offsets), CommitStart::Started);
        source.consumer.unsubscribe();
        let revoked =
            |event: Event| matches!(event, Event::Revoked { lost: false, .. }).then_some(());
        wait_for(&mut source, None, revoked);
        assignment.close();
        source.release();
        let assigned = |source: &KafkaSource| source.consumer.assignment().unwrap().count();
        for _ in 0..10 {
            poll(&mut source, None);
            assert_eq!(assigned(&source), 1, "the commit could be sent in another generation");
        }

        let committed = |event| match event {
            Event::Committed(result) => Some(result),
            _ => None,
        };
        assert_eq!(wait_for(&mut source, None, committed), CommitResult::Acknowledged);
        assert_eq!(assignment.committed(), Some(1));
        poll(&mut source, None);
        assert_eq!(assigned(&source), 0);
    }

    #[test]
    fn poll_that_logs_a_line_asks_for_another_poll() {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        let mut client = kafka.consumer_config("billing");
        client.set("debug", "all").set_log_level(RDKafkaLogLevel::Debug);
        let mut source = KafkaSource::start(&settings(client.into(), "payments")).unwrap();
        let mut cx = task::Context::from_waker(task::Waker::noop());
        let mut events = Vec::new();
        // The start has logged many lines. Nothing is assigned yet.
        for _ in 0..3 {
            assert!(source.poll(&mut cx, None, &mut events));
        }
        assert!(events.is_empty());
    }
}
