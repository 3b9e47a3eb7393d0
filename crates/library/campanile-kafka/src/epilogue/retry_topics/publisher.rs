//! The choice of a record's next retry topic.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{ConfigError, Record, limits};
use campanile_driver::source::Delay;

use super::{RetryTopics, copy};
use crate::client::ClientSettings;
use crate::config::non_earliest_reset;
use crate::publish::{PublishError, Publisher};

/// One retry topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryTopic {
    pub(crate) topic: Arc<str>,
    /// The first topic has the stage 0.
    pub(crate) delay: Delay,
}

/// The retry topics, with increasing delays. Empty if the consumer has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryTopicList(Arc<[RetryTopic]>);

impl RetryTopicList {
    fn new(topics: Vec<(String, Duration)>) -> Result<Self, ConfigError> {
        let refused = |text: String| Err(ConfigError::new(text));
        let mut previous = Duration::ZERO;
        let mut all: Vec<RetryTopic> = Vec::with_capacity(topics.len());
        for (stage, (topic, delay)) in topics.into_iter().enumerate() {
            if topic.is_empty() || topic.starts_with('^') {
                return refused(format!(
                    "`{topic}` cannot be a retry topic: not a valid topic name"
                ));
            }
            if all.iter().any(|other| *other.topic == *topic) {
                return refused(format!("retry topic `{topic}` is listed more than once"));
            }
            if delay < Duration::from_millis(1) || delay > limits::MAX_BACKOFF {
                return refused(format!(
                    "the delay of `{topic}` is {delay:?}, but must be from 1 ms to a day"
                ));
            }
            if delay <= previous {
                return refused(format!(
                    "the delay of `{topic}` is {delay:?}, but must be longer than the previous one"
                ));
            }
            previous = delay;
            all.push(RetryTopic { topic: topic.into(), delay: Delay { time: delay, stage } });
        }
        if all.is_empty() {
            return refused("no retry topic: add one with `RetryTopics::then`".into());
        }
        Ok(Self(all.into()))
    }

    /// Finds the retry topic with this name.
    pub(crate) fn find(&self, topic: &str) -> Option<&RetryTopic> {
        self.0.iter().find(|retry_topic| *retry_topic.topic == *topic)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|retry_topic| &retry_topic.topic)
    }

    /// Chooses the retry topic after that with the delay `from`, or the first later one with a delay of at least
    /// `after`, or else the last.
    fn next_topic(&self, after: Option<Duration>, from: Option<Delay>) -> &RetryTopic {
        let min_index = from.map_or(0, |from| from.stage + 1);
        let after = after.unwrap_or_default();
        let index = self.0.partition_point(|topic| topic.delay.time < after).max(min_index);
        &self.0[index.min(self.0.len() - 1)]
    }
}

/// The retry topics, and the publisher of copies.
pub(crate) struct RetryPublisher {
    topics: RetryTopicList,
    publisher: Publisher,
}

impl RetryPublisher {
    /// Creates the publisher of copies.
    ///
    /// # Errors
    /// Fails if the producer rejects a setting, if the topics or their delays are invalid, or if
    /// the consumer would skip copies.
    pub(crate) fn new(topics: RetryTopics, consumer: &ClientSettings) -> Result<Self, ConfigError> {
        let list = RetryTopicList::new(topics.topics)?;
        check_offset_reset(consumer)?;
        let publisher = Publisher::with_consumer_config(consumer, &topics.publish_settings)?;
        Ok(Self { topics: list, publisher })
    }

    pub(crate) fn topics(&self) -> &RetryTopicList {
        &self.topics
    }

    /// Chooses the retry topic for a record that is to be retried after this time. `from` is the
    /// delay of the retry topic that the record came from, if any.
    pub(crate) fn next_topic(&self, after: Option<Duration>, from: Option<Delay>) -> &RetryTopic {
        self.topics.next_topic(after, from)
    }

    /// Publishes a copy of a record to a retry topic. The record's offset may be committed only
    /// after this returns `Ok`.
    ///
    /// # Cancellation
    /// If the future is dropped, the copy may still be published.
    pub(crate) async fn publish(
        &self,
        record: &Record,
        topic: &Arc<str>,
    ) -> Result<(), PublishError> {
        self.publisher.publish(&copy::message(record, topic.clone())).await
    }
}

/// Rejects a consumer that skips existing records where no offset is committed. A retry topic has
/// no committed offset until its first copy is processed. The original record's offset is already
/// committed by then, so a copy that is skipped would be lost.
fn check_offset_reset(consumer: &ClientSettings) -> Result<(), ConfigError> {
    match non_earliest_reset(consumer) {
        None => Ok(()),
        Some(other) => Err(ConfigError::new(format!(
            "`auto.offset.reset` is `{other}`, but must be `earliest` with retry topics: after a \
             restart or a rebalance, copies in a retry topic without a committed offset would \
             never be read. To skip the existing records of the other topics, set the group's \
             offsets to their end before it first starts"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn topics() -> RetryTopicList {
        let topics = [("5s", 5 * SECOND), ("1m", 60 * SECOND), ("5m", 300 * SECOND)];
        RetryTopicList::new(topics.map(|(topic, delay)| (topic.to_owned(), delay)).into()).unwrap()
    }

    fn next_topic(after: Option<Duration>, from: Option<&str>) -> Arc<str> {
        let topics = topics();
        topics.next_topic(after, from.map(|topic| topics.find(topic).unwrap().delay)).topic.clone()
    }

    #[test]
    fn each_failure_advances_one_topic_up_to_the_last() {
        for after in [None, Some(Duration::ZERO), Some(5 * SECOND)] {
            assert_eq!(&*next_topic(after, None), "5s");
            assert_eq!(&*next_topic(after, Some("5s")), "1m");
            assert_eq!(&*next_topic(after, Some("1m")), "5m");
            assert_eq!(&*next_topic(after, Some("5m")), "5m");
        }
    }

    #[test]
    fn longer_retry_time_chooses_a_later_topic() {
        let more = Duration::from_nanos(1);
        for (after, topic) in [(5 * SECOND + more, "1m"), (60 * SECOND + more, "5m")] {
            assert_eq!(&*next_topic(Some(after), None), topic);
            assert_eq!(&*next_topic(Some(after), Some("5s")), topic);
        }
        for from in [None, Some("5s"), Some("1m"), Some("5m")] {
            assert_eq!(&*next_topic(Some(3600 * SECOND), from), "5m");
        }
    }

    #[test]
    fn offset_reset_other_than_earliest_is_refused() {
        let with = |reset: &str| {
            let mut client = ClientSettings::default();
            client.set("auto.offset.reset", reset);
            check_offset_reset(&client)
        };
        for reset in ["latest", "largest", "end", "error"] {
            let error = with(reset).unwrap_err().to_string();
            assert!(error.contains(reset) && error.contains("never be read"), "{error}");
        }
        assert!(["earliest", "smallest", "beginning"].iter().all(|reset| with(reset).is_ok()));
        assert!(check_offset_reset(&ClientSettings::default()).is_ok());
    }

    #[test]
    fn invalid_retry_topics_are_refused() {
        let day = 86_400 * SECOND;
        for (topics, why) in [
            (vec![], "no retry topic"),
            (vec![("", SECOND)], "not a valid topic name"),
            (vec![("^a", SECOND)], "not a valid topic name"),
            (vec![("a", SECOND), ("a", 2 * SECOND)], "more than once"),
            (vec![("a", SECOND), ("b", SECOND)], "`b` is 1s, but must be longer"),
            (vec![("a", Duration::ZERO)], "from 1 ms"),
            (vec![("a", day + SECOND)], "a day"),
        ] {
            let owned = topics.into_iter().map(|(topic, delay)| (topic.to_owned(), delay));
            let error = RetryTopicList::new(owned.collect()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(RetryTopicList::new(vec![("a".into(), day)]).is_ok());
    }
}
