//! Checks that the topics of assigned partitions are still those that the partitions were started with.
//!
//! librdkafka (2.12) continues at its position when a topic is deleted and recreated, and commits have only
//! the name of a topic. So the ids of the topics are requested before each commit, after the position was
//! reset, and at an interval. All records that were read before the request are from the topics whose ids
//! are unchanged in its response.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use campanile_driver::source::{Assignment, LogChange};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use tokio::time::Instant;

use super::context::Context;
use crate::native::SourceWaker;
use crate::native::topic_ids::{TopicIdRequest, TopicIds};
use crate::topic_ids::{MAX_REQUEST_TIMEOUT, REQUEST_TIMEOUT, has_other_log};

/// How often topics are checked that nothing is committed for.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Checks topics.
pub(super) struct TopicCheck {
    /// The request in flight, and the partitions of its topics. Dropped before the consumer.
    request: Option<(TopicIdRequest, Vec<Arc<Assignment>>)>,
    consumer: Arc<BaseConsumer<Context>>,
    waker: SourceWaker,
    next_check: Instant,
    /// The number of requests that have failed: another broker is asked after each.
    failures: usize,
    /// The timeout of the next request.
    timeout: Duration,
    /// Changes of logs that are none if their topic was recreated, and that the next request decides.
    suspected: Vec<LogChange>,
    /// Those that the request in flight decides.
    checking: Vec<LogChange>,
}

/// The end of a check.
pub(super) struct Checked {
    partitions: Vec<Arc<Assignment>>,
    ids: KafkaResult<TopicIds>,
    /// The changes of logs whose topics are unchanged.
    pub(super) changes: Vec<LogChange>,
}

impl TopicCheck {
    /// Wakes `waker` when a check ends.
    pub(super) fn new(consumer: Arc<BaseConsumer<Context>>, waker: SourceWaker) -> Self {
        let (request, suspected, checking) = (None, Vec::new(), Vec::new());
        let next_check = Instant::now() + CHECK_INTERVAL;
        let (failures, timeout) = (0, REQUEST_TIMEOUT);
        Self { request, consumer, waker, next_check, failures, timeout, suspected, checking }
    }

    /// Starts a check of these partitions, and of those of a check in flight, which it replaces. Returns
    /// whether there is anything to check: brokers before Kafka 2.8 have no ids of topics.
    pub(super) fn start(&mut self, mut partitions: Vec<Arc<Assignment>>) -> bool {
        // Only a request that is sent after a change was seen decides it.
        self.checking.append(&mut self.suspected);
        partitions.extend(self.checking.iter().map(|change| change.partition.clone()));
        partitions.extend(self.request.take().into_iter().flat_map(|(_, partitions)| partitions));
        let with_id = partitions.iter().filter(|assignment| assignment.log_id().is_some());
        let topics: BTreeSet<&str> = with_id.map(|assignment| &*assignment.topic).collect();
        if topics.is_empty() {
            return false;
        }
        let (client, waker) = (self.consumer.client(), Some(self.waker.clone()));
        let request = TopicIdRequest::start(client, topics, self.timeout, self.failures, waker);
        self.request = Some((request, partitions));
        true
    }

    /// Starts a check of these partitions if one is due. Called once a second.
    pub(super) fn check_regularly(&mut self, partitions: &[Arc<Assignment>]) {
        let is_due = Instant::now() >= self.next_check || !self.suspected.is_empty();
        if is_due && self.request.is_none() {
            self.next_check = Instant::now() + CHECK_INTERVAL;
            self.start(partitions.to_vec());
        }
    }

    /// Keeps a change until it is known whether its topic was recreated.
    pub(super) fn suspect(&mut self, change: LogChange) {
        self.suspected.push(change);
    }

    /// Takes the end of the check, if it has ended.
    pub(super) fn poll(&mut self) -> Option<Checked> {
        let (request, _) = self.request.as_ref()?;
        let ids = request.poll(Duration::ZERO)?;
        self.timeout = match &ids {
            Ok(_) => REQUEST_TIMEOUT,
            Err(_) => (self.timeout + REQUEST_TIMEOUT).min(MAX_REQUEST_TIMEOUT),
        };
        self.failures += usize::from(ids.is_err());
        let (_, partitions) = self.request.take()?;
        let mut changes = std::mem::take(&mut self.checking);
        changes.retain(|change| !change.partition.is_revoked());
        let current =
            |change: &LogChange| ids.as_ref().ok()?.get(&*change.partition.topic)?.as_ref().ok();
        // Topics that are unknown at the moment are requested again.
        self.suspected.extend(changes.extract_if(.., |change| current(change).is_none()));
        changes
            .retain(|change| current(change).and_then(Option::as_ref) == change.partition.log_id());
        Some(Checked { partitions, ids, changes })
    }
}

impl Checked {
    /// Returns the partitions that have another log by now.
    pub(super) fn recreated(&self) -> Vec<Arc<Assignment>> {
        let Ok(ids) = &self.ids else {
            return Vec::new();
        };
        self.partitions.iter().filter(|of| has_other_log(ids, of)).cloned().collect()
    }

    /// Checks whether the partition has the log that it was started with, as far as the response says.
    pub(super) fn check(&self, partition: &Assignment) -> KafkaResult<bool> {
        let ids = self.ids.as_ref().map_err(Clone::clone)?;
        match ids.get(&*partition.topic) {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(!partition.is_log_lost()),
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::Clock;
    use campanile_driver::source::{Event, LogChanged, Source as _};
    use campanile_test::MockKafka;

    use super::*;
    use crate::source::tests::{assignment, consumer, poll, settings};
    use crate::source::{KafkaSource, Settings};

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn checked_topics(check: &TopicCheck) -> Vec<&str> {
        let (_, partitions) = check.request.as_ref().expect("a check is in flight");
        let mut topics: Vec<_> = partitions.iter().map(|assignment| &*assignment.topic).collect();
        topics.sort_unstable();
        topics
    }

    #[tokio::test]
    async fn check_that_replaces_another_one_includes_its_partitions() {
        let kafka = MockKafka::start(1).unwrap();
        let client = consumer(&kafka.consumer_config("billing"));
        let mut check = TopicCheck::new(client, SourceWaker::default());
        let [first, suspect, second] = ["orders", "payments", "refunds"].map(|topic| {
            let partition = assignment(topic, 0);
            partition.log_id.get_or_init(|| "id".into());
            partition
        });
        assert!(check.start(vec![first]));
        let what = LogChanged::Truncated { position: 2, offset: 1 };
        check.suspect(LogChange { partition: suspect, what });
        assert!(check.start(vec![second]));
        assert_eq!(checked_topics(&check), ["orders", "payments", "refunds"]);
    }

    #[tokio::test]
    async fn commit_checks_only_topics_with_something_to_commit() {
        let kafka = MockKafka::start(1).unwrap();
        let topics = ["payments", "refunds"];
        topics.iter().for_each(|topic| kafka.create_topic(topic, 1).unwrap());
        let settings = settings(kafka.consumer_config("billing").into(), "");
        let settings = Settings { topics: topics.map(str::to_owned).into(), ..settings };
        let mut source = KafkaSource::start(&settings).unwrap();
        let mut partitions: Vec<Arc<Assignment>> = Vec::new();
        let clock = Clock::boot();
        let deadline = clock.now() + TIMEOUT;
        let is_started = |of: &Arc<Assignment>| of.offset_range.position().is_some();
        while partitions.len() < 2 || !partitions.iter().all(is_started) {
            assert!(clock.now() < deadline);
            for event in poll(&mut source, None) {
                if let Event::Assigned(assigned) = event {
                    partitions.extend(assigned);
                }
            }
        }
        let refunds = partitions.iter().find(|of| &*of.topic == "refunds").unwrap();
        refunds.advance(1);
        source.commit(&partitions);
        assert_eq!(checked_topics(&source.topic_check), ["refunds"]);
    }
}
