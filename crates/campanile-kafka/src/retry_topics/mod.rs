//! Retries that hold nobody up: what failed waits in topics of its own.
//!
//! A copy of the record is published, then the record's offset is committed: a crash in between
//! leaves both, and they have one key.

mod copy;
mod ladder;
mod sources;

use std::time::Duration;

pub(crate) use self::copy::{Origin, origin};
pub(crate) use self::ladder::{Ladder, Rung, Rungs, now};
pub(crate) use self::sources::Sources;
use crate::publish::Terms;

/// Records that are to be tried again wait in topics of their own, and those behind them go on.
///
/// Without it, a record that is to be tried again holds up its partition until its back-off is over.
/// With it, a copy is published to one of these topics, and the record's offset is committed. The
/// consumer reads these topics as well, and processes a copy when its delay is over.
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
/// **This gives up the order of a key.** Records behind the one that failed are processed before it.
/// Where a later event must not overtake an earlier one of its account, do without.
///
/// # Which topic
/// The first failure goes to the first topic, and each further one at least one topic further; the
/// last goes to itself. Where the back-off, or the time that the error
/// [tells](campanile_core::error::retry_after), is longer than that topic's delay, the copy goes to the
/// first topic behind it that is long enough, or else to the last. It never goes back: an error that
/// tells a shorter time still waits for the delay of the next topic.
///
/// # What holds
/// * A copy is the record as it came: key, payload, headers and timestamp; but a header's name that is
///   not UTF-8 has U+FFFD in the place of what is not, and ends at its first NUL. Its coordinates are the
///   copy's own, and its [origin](campanile_core::Record::origin) tells where the record stood first;
///   [`key::coordinates`](campanile_core::key::coordinates) and dead letters go by that. So it keeps
///   its key, its attempts and its back-off: the store knows them by the key.
/// * The offset is committed after the brokers have acknowledged the copy. A crash in between leaves
///   the record and its copy; who comes second is answered as a duplicate.
/// * What cannot be published within [a time](Self::with_timeout) is tried again where it stands, as
///   without retry topics.
/// * Only failed attempts, panics among them, make copies. A key that is locked or backing off and a
///   store that is down say nothing about the record, which waits where it stands. What is given up
///   goes where [`GivenUp`](crate::GivenUp) says.
/// * Copies that wait take about a quarter of the consumer's budget, and leave the others theirs.
///
/// Attempts are counted by the idempotency layer alone: in a stack without it, nothing ends the
/// retries.
///
/// # The topics
/// They must exist when serving begins, belong to this group alone, and be deleted by time, not
/// compacted. A new one is read from its beginning, so `auto.offset.reset` other than `earliest` is
/// refused: a copy must not be skipped because nothing was committed before it. A copy of a record from
/// a topic that the consumer is not subscribed to is another group's: it reaches no handler and stops
/// the consumer ([`ConsumerError::Stopped`](crate::ConsumerError::Stopped)). So do not unsubscribe from
/// a topic before its copies are through. A longer retention than the consumer's longest outage loses
/// nothing. Headers that say where a record stood first are believed in these topics and in no others,
/// so nobody else should write to them. Let the last delay be as long as the layer's longest back-off (5 min by default),
/// and as the longest time that an error tells: a copy whose back-off outlasts its delay waits in its
/// place, and holds up those behind it.
///
/// A topic that is taken out of the configuration is not read any more, and the copies that wait in it
/// stay there until its retention deletes them. Before, let the group's lag in it come to nothing: stop
/// what fails, or what is produced. If copies were left behind, put the topic back until they are
/// through. A delay that is changed counts for the copies that wait already.
#[derive(Clone, Debug)]
pub struct RetryTopics {
    rungs: Vec<(String, Duration)>,
    terms: Terms,
}

impl RetryTopics {
    /// None yet.
    pub fn new() -> Self {
        Self { rungs: Vec::new(), terms: Terms::new(Duration::from_secs(10)) }
    }

    /// Adds a topic, whose records are processed this long after they were published to it. Each
    /// delay must be longer than the one before; from 1 ms to a day, the longest back-off.
    ///
    /// It is measured by this machine's clock from the copy's timestamp, and never longer than the
    /// delay from when the copy was read. Clocks that differ shorten it; then the
    /// store, which has the last word, has the copy wait in its place.
    pub fn then(mut self, topic: impl Into<String>, delay: Duration) -> Self {
        self.rungs.push((topic.into(), delay));
        self
    }

    /// Sets one of librdkafka's settings for the producer of copies; as
    /// [`DeadLetter::set`](crate::DeadLetter::set). The brokers are the consumer's here, too: elsewhere
    /// nobody would read the copies.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.terms.set(name, value);
        self
    }

    /// How long one publication may take; what is refused is tried again meanwhile. At least 1 s.
    /// Then the record is tried again where it stands.
    ///
    /// Default: 10 s, because until then its partition waits, as it would for a longer back-off.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.terms.set_budget(timeout);
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
    fn its_debug_shows_no_secrets() {
        let topics = RetryTopics::new().then("retry", Duration::from_secs(1));
        let text = format!("{:?}", topics.set("sasl.password", "s3cret"));
        assert!(text.contains("retry") && !text.contains("s3cret"), "{text}");
    }
}
