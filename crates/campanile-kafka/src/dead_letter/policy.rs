//! How dead letters are published.

use std::sync::Arc;
use std::time::Duration;

use super::HeaderStyle;
use super::topic::Topic;
use crate::flood::FloodGuard;
use crate::publish::Terms;

/// Records that are given up go to a topic of their own, and are committed only after that.
///
/// ```
/// use campanile_kafka::{Consumer, ConsumerConfig, DeadLetter};
///
/// # fn main() -> Result<(), campanile_core::ConfigError> {
/// let consumer = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
///     .subscribe(["payments"])
///     .with_given_up(DeadLetter::topic("payments.dead"));
/// # Ok(())
/// # }
/// ```
///
/// A dead letter has the key, the payload, the timestamp and the headers of its record, and headers
/// that say where it came from and why it died: see [`HeaderStyle`]. Its partition follows from its
/// key, so the topic may have any number of partitions.
///
/// Two things of a record cannot be told to Kafka again. A header's name that is not UTF-8 has U+FFFD
/// in the place of what is not, and ends at its first NUL, as librdkafka hands it out. A timestamp that
/// is not after 1970, or that the topic refuses, is that of the letter's publication; the headers of
/// [`HeaderStyle::Spring`] have the record's.
///
/// # What holds
/// * The letter is published, with the acknowledgement of all replicas in sync; then the key's entry
///   becomes FAILED; then the offset is committed. A crash in between publishes the letter again,
///   and loses none. Copies of one letter tell the same original topic, partition and offset, and the
///   same `campanile-key`; not the same `campanile-token`, for the second burial has a lock of its own.
/// * While a letter cannot be published, its record's offset stays where it is, its partition waits,
///   and the others go on. An event at level ERROR says what is wrong.
/// * A letter that is too large for the topic is published without its payload: its headers say
///   where the record stands. So is one during whose publication a process died before, since that
///   may be its fault. From the fifth burial on of which all before were interrupted so, nothing is
///   published or committed any more: an event at level ERROR says so, and the partition stands still
///   until the key is reopened. A burial that is let go in order counts for neither: by a topic that
///   is away, a pause, a shutdown, a revoke or a stop.
/// * If more than half of what is finished becomes dead letters, the consumer pauses instead of
///   emptying its topic into another: see [`FloodGuard`].
/// * A publication that is interrupted by a shutdown or a revoke is a failed attempt; whoever has the
///   record next publishes its letter.
///
/// The idempotency layer must hand over what it gives up, as it does by default; what it
/// [rejects](campanile_idempotency::policy::OnGivenUp::Reject) by itself never comes here.
///
/// The topic must exist when serving begins, and must not be one of those that are consumed. Give it
/// a retention that leaves time to look at it, and no compaction: that keeps one letter of each record
/// key, and takes none without a key.
///
/// `Debug` prints no values of settings.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub(super) topic: Topic,
    pub(super) headers: HeaderStyle,
    pub(super) terms: Terms,
    pub(crate) flood_guard: FloodGuard,
}

impl DeadLetter {
    /// All dead letters go to this topic.
    pub fn topic(topic: impl Into<String>) -> Self {
        Self::new(Topic::One(topic.into().into()))
    }

    /// The dead letters of each topic go to the one that this gives for its name, such as
    /// `|topic| format!("{topic}.dead")`.
    pub fn by_topic(choose: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::new(Topic::BySource(Arc::new(choose)))
    }

    fn new(topic: Topic) -> Self {
        Self {
            topic,
            headers: HeaderStyle::default(),
            terms: Terms::new(Duration::from_secs(5 * 60)),
            flood_guard: FloodGuard::default(),
        }
    }

    /// Whose tools are to read the headers. Default: [`HeaderStyle::Spring`].
    pub fn with_headers(mut self, style: HeaderStyle) -> Self {
        self.headers = style;
        self
    }

    /// Sets one of librdkafka's settings for the producer. It wins over the consumer's, from which
    /// the producer has its brokers, its security and all else that is not a consumer's alone, and
    /// over these defaults: no batches, so that one message that is refused has no others refused;
    /// `compression.type=lz4`; `partitioner=murmur2_random`, as Kafka's own clients have it; and
    /// `message.max.bytes=100000000`, for what is too large the topic decides.
    ///
    /// What contradicts is refused when serving begins: `acks` is `all`, `message.timeout.ms` follows
    /// from [`with_timeout`](Self::with_timeout), there are no transactions, and the brokers are the
    /// consumer's: no `bootstrap.servers`. To have them in another cluster, mirror the topic.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.terms.set(name, value);
        self
    }

    /// How long one publication may take; what is refused is tried again meanwhile. At least 1 s.
    /// Then the record's lock is let go, and all begins anew after a back-off.
    ///
    /// Default: 5 min, librdkafka's default for the time a message has to be delivered: brokers that
    /// are restarted one after the other are back by then, and the lock of a record that is buried
    /// may be held for twice as long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.terms.set_budget(timeout);
        self
    }

    /// When to pause instead of publishing. Default: [`FloodGuard::default`].
    pub fn with_flood_guard(mut self, guard: FloodGuard) -> Self {
        self.flood_guard = guard;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GivenUp;

    #[test]
    fn its_debug_shows_no_secrets() {
        let policy = DeadLetter::topic("orders.dead").set("sasl.password", "s3cret");
        let text = format!("{:?}", GivenUp::from(policy));
        assert!(text.contains("orders.dead") && !text.contains("s3cret"), "{text}");
    }
}
