//! Non-blocking retries: failed records wait in topics of their own.
//!
//! A copy of the record is published, then the record's offset is committed. A crash in between
//! leaves both, and they have the same idempotency key.

mod copy;
#[cfg(test)]
mod fuzz;
mod publisher;
mod sources;

use std::time::Duration;

pub(crate) use self::copy::OriginHeaders;
pub(crate) use self::publisher::{RetryPublisher, RetryTopicList};
pub(crate) use self::sources::SourceTopics;
use crate::publish::PublishSettings;

/// Topics in which failed records wait for their next attempt, while the records behind them are
/// processed.
///
/// Without retry topics, a record that is to be retried holds up its partition until its backoff is
/// over. With them, a copy is published to one of these topics, and the record's offset is
/// committed. The consumer reads these topics as well, and processes a copy when its delay is over.
///
/// ```
/// use campanile_kafka::{Consumer, ConsumerConfig, RetryTopics};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let retries = RetryTopics::new()
///     .then("billing.retry.5s", Duration::from_secs(5))
///     .then("billing.retry.5m", Duration::from_secs(5 * 60));
/// let consumer = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
///     .subscribe(["payments"])
///     .with_retry_topics(retries);
/// # Ok(())
/// # }
/// ```
///
/// **Retry topics give up the order of a key.** Records behind the one that failed are processed
/// before it. Do not use retry topics where a later event of an account must not overtake an
/// earlier one.
///
/// # Choice of the topic
/// The first failure goes to the first topic, and each further failure at least one topic further.
/// A failure in the last topic goes to the last topic again. If the backoff, or the time that the
/// error [asks for](campanile_core::error::retry_after), is longer than that topic's delay, the
/// copy goes to the first later topic with a delay that is long enough, or else to the last. A copy
/// never goes back: if the error asks for a shorter time, the copy still waits for the delay of the
/// next topic.
///
/// # Guarantees
/// * The handler gets the key, payload, headers and timestamp of the record from its copy. (In a
///   header name that is not UTF-8, the invalid bytes become U+FFFD, and a name ends at its first
///   NUL.) The copy's timestamp in the topic is the time of its publication, from which the delay
///   and the topic's retention are measured. The copy has coordinates of its own, and its [origin](campanile_core::Record::origin) is the original
///   position of the record, which [`key::coordinates`](campanile_core::key::coordinates) and dead
///   letters use. So the copy keeps its idempotency key, its attempts and its backoff, which the
///   store finds by the key.
/// * The offset is committed after the brokers have acknowledged the copy. A crash in between
///   leaves the record and its copy; the second one to be processed is answered as a duplicate.
/// * If the copy cannot be published within [a timeout](Self::with_timeout), the record is retried
///   in place, as without retry topics.
/// * Only failed attempts, including panics, produce copies. A key that is locked or backing off
///   and a store that is unavailable say nothing about the record, which then waits in place. A
///   record that is given up goes where [`OnGiveUp`](crate::OnGiveUp) says.
/// * Waiting copies use about a quarter of the consumer's budget, and leave the rest to other
///   records.
///
/// Only the idempotency layer counts attempts: in a stack without it, nothing ends the retries.
///
/// # The topics
/// The topics must exist when serving starts, belong to this group alone, and be deleted by time,
/// not compacted. A new topic is read from its beginning, so an `auto.offset.reset` other than
/// `earliest` is refused: a copy must not be skipped because no offset was committed before it.
/// With a retention that is longer than the consumer's longest outage, nothing is lost.
///
/// A copy of a record from a topic that the consumer is not subscribed to belongs to another group.
/// It reaches no handler and stops the consumer
/// ([`ConsumerError::Stopped`](crate::ConsumerError::Stopped)), so do not unsubscribe from a topic
/// before its copies are processed. The headers with a record's original position are trusted in
/// these topics and in no others, so no other program should write to these topics.
///
/// Make the last delay at least as long as the layer's longest backoff (5 min by default) and as
/// the longest time that an error asks for. A copy with a backoff that outlasts its delay waits in
/// place, and holds up the copies behind it.
///
/// A topic that is removed from the configuration is no longer read, and the copies that wait in it
/// stay there until its retention deletes them. Before you remove a topic, let the group's lag in
/// it fall to zero: stop the cause of the failures, or the producers. If copies were left behind,
/// add the topic again until they are processed. A changed delay also applies to copies that are
/// already waiting.
#[derive(Clone, Debug)]
#[must_use]
pub struct RetryTopics {
    topics: Vec<(String, Duration)>,
    publish_settings: PublishSettings,
}

impl RetryTopics {
    /// Creates an empty list of topics.
    pub fn new() -> Self {
        Self { topics: Vec::new(), publish_settings: PublishSettings::new(Duration::from_secs(10)) }
    }

    /// Adds a topic. Its records are processed `delay` after they were published to it. Each delay
    /// must be longer than the previous one, and from 1 ms to a day, the longest backoff.
    ///
    /// The delay is measured from the copy's timestamp by this machine's clock, and never lasts
    /// longer than if it were measured from when the copy was read. Clocks that differ can shorten
    /// the delay. Then the copy waits in place, because the store decides when an attempt is due.
    pub fn then(mut self, topic: impl Into<String>, delay: Duration) -> Self {
        self.topics.push((topic.into(), delay));
        self
    }

    /// Sets a librdkafka property of the producer of copies, as
    /// [`DeadLetter::set`](crate::DeadLetter::set) does. The brokers are the consumer's here as
    /// well: copies in another cluster would not be read.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.publish_settings.set(name, value);
        self
    }

    /// Sets how long one publication may take. Within that time, a publication that is refused is
    /// retried. At least 1 s. Afterwards the record is retried in place.
    ///
    /// Default: 10 s, because the record's partition waits for that time, as it would for a longer
    /// backoff.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.publish_settings.set_budget(timeout);
        self
    }
}

impl Default for RetryTopics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secrets() {
        let topics = RetryTopics::new().then("retry", Duration::from_secs(1));
        let text = format!("{:?}", topics.set("sasl.password", "s3cret"));
        assert!(text.contains("retry") && !text.contains("s3cret"), "{text}");
    }
}
