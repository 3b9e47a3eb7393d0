//! The policy by which dead letters are published.

use std::sync::Arc;
use std::time::Duration;

use campanile_driver::FloodLimit;

use super::topic::TopicChoice;
use crate::publish::PublishSettings;

/// A policy that publishes records to a dead-letter topic, and commits their offsets only
/// after that.
///
/// ```
/// use campanile_kafka::{Consumer, ConsumerConfig, DeadLetter};
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let consumer = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
///     .subscribe(["payments"])
///     .on_give_up(DeadLetter::topic("payments.dead"));
/// # Ok(())
/// # }
/// ```
///
/// A dead letter has the key, the payload and the headers of its record, and headers that say where
/// the record came from and why it was given up. Its partition follows from its
/// key, so the topic may have any number of partitions. In a header name that is not UTF-8, the
/// invalid bytes become U+FFFD, and a name ends at its first NUL, as librdkafka returns it.
///
/// The letter's timestamp is the time of its publication, and a header keeps the record's. The
/// brokers measure the topic's retention from timestamps, so the letter of an old record would
/// otherwise be deleted within minutes.
///
/// # Headers
/// * `kafka_dlt-original-*` and `kafka_dlt-exception-*`, with partition, offset and timestamp in binary, as
///   Spring for Apache Kafka's `DeadLetterPublishingRecoverer` writes them, because more tools support these
///   headers than any others. Rust errors have no class at run time: in its place stands `campanile.` followed
///   by the kind of failure, which is `AttemptFailed` (an attempt failed, and no further
///   attempt is allowed), `Exhausted` (no attempt was left; the last one crashed, or its record could
///   not be given up), `MissingKey`, `InvalidKey`, `Mismatch` (the key was used for another payload),
///   `DecodeError`, or `Error` for an error that does not come from Campanile's layers. Messages are cut at
///   1 KiB and "stack traces" (the error and its sources, one per line) at 4 KiB.
/// * `campanile-cause` (the cause, as one word), `campanile-key` (the idempotency key, as bytes),
///   `campanile-namespace` and `campanile-token` (of the lock), `campanile-attempts` and
///   `campanile-give-ups` (decimal), as far as the record has them.
/// * In a letter that was too large: `campanile-truncated-payload-bytes`, the size of its payload, and
///   `campanile-truncated-headers`, the number of headers that were left out to keep the others below 16 KiB.
///
/// # Guarantees
/// * The letter is published and acknowledged by all in-sync replicas; then the key's entry becomes
///   FAILED; then the offset is committed. A crash in between publishes the letter again, and loses
///   none. Copies of a letter have the same original topic, partition and offset, and the same
///   `campanile-key`, but not the same `campanile-token`, because the second give-up has a lock of
///   its own.
/// * While a letter cannot be published, its record's offset is not committed and its partition
///   waits. The other partitions continue. An event at level ERROR says what is wrong.
/// * A letter that is too large for the topic is published without its payload; its headers say
///   where the record is stored. The same applies if an earlier give-up (an attempt to publish the
///   letter) was interrupted by a crash, because the payload may have caused the crash. A give-up
///   under the lock of the record's last attempt is not counted, however it ends. From the fifth
///   give-up on, if the earlier ones were all interrupted this way, nothing is published or
///   committed any more: an event at level ERROR says so, and the partition waits until the key is
///   reopened. A give-up that ends cleanly is not counted, whether an unavailable topic, a pause, a
///   shutdown, a revoke or a stop ended it.
/// * If more than half of the finished records become dead letters, the consumer pauses instead of
///   moving its whole topic into another: see [`FloodLimit`].
/// * If a shutdown or a revoke interrupts a publication, the attempt that failed stays counted, and
///   no give-up is. The next owner of the record publishes its letter.
///
/// The idempotency layer must hand over the records that it gives up, as it does by default. A
/// record that the layer [rejects](campanile_idempotency::policy::OnExhausted::GiveUp) by itself
/// never becomes a dead letter.
///
/// The topic must exist when serving starts, and must not be one of the topics that are consumed.
/// Give it a retention that leaves time to inspect the letters, and no compaction: a compacted
/// topic keeps one letter for each record key, and accepts none without a key.
///
/// `Debug` does not print the values of settings.
#[derive(Clone, Debug)]
#[must_use]
pub struct DeadLetter {
    pub(super) topic: TopicChoice,
    pub(super) publish_settings: PublishSettings,
    pub(crate) flood_limit: FloodLimit,
}

impl DeadLetter {
    /// Publishes all dead letters to this topic.
    pub fn topic(topic: impl Into<String>) -> Self {
        Self::new(TopicChoice::One(topic.into().into()))
    }

    /// Publishes the dead letters of each topic to the one that `choose` returns for its name, such
    /// as `|topic| format!("{topic}.dead")`. The function may run on the driver's thread, and must
    /// not block.
    pub fn by_topic(choose: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::new(TopicChoice::BySource(Arc::new(choose)))
    }

    fn new(topic: TopicChoice) -> Self {
        Self {
            topic,
            publish_settings: PublishSettings::new(Duration::from_secs(5 * 60)),
            flood_limit: FloodLimit::default(),
        }
    }

    /// Sets a librdkafka property of the producer. It overrides the consumer's properties, from
    /// which the producer takes its brokers, its security and everything else that is not specific
    /// to consumers. It also overrides these defaults: no batches, so that a message that is
    /// refused causes no others to be refused; `compression.type=lz4`;
    /// `partitioner=murmur2_random`, as in Kafka's own clients; and `message.max.bytes=100000000`,
    /// so that the topic decides what is too large.
    ///
    /// Contradictory settings are refused when serving starts: `acks` is `all`,
    /// `message.timeout.ms` follows from [`with_timeout`](Self::with_timeout), there are no
    /// transactions, and the brokers are the consumer's, so `bootstrap.servers` cannot be set. To
    /// have the letters in another cluster, mirror the topic.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.publish_settings.set(name, value);
        self
    }

    /// Sets how long one publication may take. Within that time, a publication that is refused is
    /// retried. At least 1 s. Afterwards the record's lock is dropped, and the give-up starts over
    /// after a backoff.
    ///
    /// Default: 5 min, librdkafka's default for the delivery of a message. Brokers that are
    /// restarted one after the other are back by then, and the lock of a record that is being
    /// given up may be held for twice as long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.publish_settings.set_budget(timeout);
        self
    }

    /// Sets when to pause instead of publishing. Default: [`FloodLimit::default`].
    pub fn with_flood_limit(mut self, guard: FloodLimit) -> Self {
        self.flood_limit = guard;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnGiveUp;

    #[test]
    fn debug_shows_no_secrets() {
        let policy = DeadLetter::topic("orders.dead").set("sasl.password", "s3cret");
        let text = format!("{:?}", OnGiveUp::from(policy));
        assert!(text.contains("orders.dead") && !text.contains("s3cret"), "{text}");
    }
}
