//! The choice of a record's next retry topic.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::{ConfigError, Record, limits};
use rdkafka::ClientConfig;
use tokio::time::Instant;

use super::{RetryTopics, copy};
use crate::config::begins_elsewhere;
use crate::publish::{Publisher, Refused};

/// One retry topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    pub(crate) topic: Arc<str>,
    pub(crate) delay: Duration,
    /// The index of the topic. The first is 0.
    step: usize,
}

impl Rung {
    /// Returns when a copy that was published at this time is due. `None` if that is out of range;
    /// then the copy does not wait.
    pub(crate) fn due(&self, published: SystemTime) -> Option<SystemTime> {
        published.checked_add(self.delay)
    }

    /// Returns how long a copy that is due at `due` and was received at `received` still has to
    /// wait. `None` if it is due. The wait is at most the full delay counted from `received`,
    /// whatever the clocks say: a clock that is behind delays all copies once, rather than one
    /// after another.
    pub(crate) fn left(&self, due: SystemTime, received: Instant) -> Option<Duration> {
        let left = due.duration_since(now()).ok()?;
        let left = left.min(self.delay.saturating_sub(received.elapsed()));
        (!left.is_zero()).then_some(left)
    }
}

/// Returns the wall-clock time. Copies wait by this clock, because their timestamps come from other
/// machines.
pub(crate) fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "Kafka's timestamps are wall-clock time")]
    SystemTime::now()
}

/// The retry topics, with increasing delays. Empty if the consumer has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rungs(Arc<[Rung]>);

impl Rungs {
    fn new(rungs: Vec<(String, Duration)>) -> Result<Self, ConfigError> {
        let refused = |text: String| Err(ConfigError::new(text));
        let mut shorter = Duration::ZERO;
        let mut all: Vec<Rung> = Vec::with_capacity(rungs.len());
        for (step, (topic, delay)) in rungs.into_iter().enumerate() {
            if topic.is_empty() || topic.starts_with('^') {
                return refused(format!(
                    "`{topic}` cannot be a retry topic: not a valid topic name"
                ));
            }
            if all.iter().any(|rung| *rung.topic == *topic) {
                return refused(format!("retry topic `{topic}` is listed more than once"));
            }
            if delay < Duration::from_millis(1) || delay > limits::MAX_BACKOFF {
                return refused(format!(
                    "the delay of `{topic}` is {delay:?}, but must be from 1 ms to a day"
                ));
            }
            if delay <= shorter {
                return refused(format!(
                    "the delay of `{topic}` is {delay:?}, but must be longer than the previous one"
                ));
            }
            shorter = delay;
            all.push(Rung { topic: topic.into(), delay, step });
        }
        if all.is_empty() {
            return refused("no retry topic: add one with `RetryTopics::then`".into());
        }
        Ok(Self(all.into()))
    }

    /// Finds the retry topic with this name.
    pub(crate) fn of(&self, topic: &str) -> Option<&Rung> {
        self.0.iter().find(|rung| *rung.topic == *topic)
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|rung| &rung.topic)
    }

    /// Chooses the retry topic after `from`, or the first later one with a delay of at least
    /// `after`, or else the last.
    fn next(&self, after: Option<Duration>, from: Option<&Rung>) -> &Rung {
        let further = from.map_or(0, |from| from.step + 1);
        let after = after.unwrap_or_default();
        let step = self.0.partition_point(|rung| rung.delay < after).max(further);
        &self.0[step.min(self.0.len() - 1)]
    }
}

/// The retry topics, and the publisher of copies.
pub(crate) struct Ladder {
    rungs: Rungs,
    publisher: Publisher,
}

impl Ladder {
    /// Creates the publisher of copies.
    ///
    /// # Errors
    /// Fails if the producer rejects a setting, if the topics or their delays are invalid, or if
    /// the consumer would skip copies.
    pub(crate) fn new(topics: RetryTopics, consumer: &ClientConfig) -> Result<Self, ConfigError> {
        let rungs = Rungs::new(topics.rungs)?;
        from_the_beginning(consumer)?;
        let publisher = Publisher::beside(consumer, &topics.terms)?;
        Ok(Self { rungs, publisher })
    }

    pub(crate) fn rungs(&self) -> &Rungs {
        &self.rungs
    }

    /// Chooses the retry topic for a record that is to be retried after this time. `from` is the
    /// retry topic that the record came from, if any.
    pub(crate) fn next(&self, after: Option<Duration>, from: Option<&Rung>) -> &Rung {
        self.rungs.next(after, from)
    }

    /// Publishes a copy of a record to a retry topic. The record's offset may be committed only
    /// after this returns `Ok`.
    ///
    /// # Cancellation
    /// If the future is dropped, the copy may still be published.
    pub(crate) async fn publish(&self, record: &Record, topic: &Arc<str>) -> Result<(), Refused> {
        self.publisher.publish(&copy::message(record, topic.clone())).await
    }
}

/// Rejects a consumer that skips existing records where no offset is committed. A retry topic has
/// no committed offset until its first copy is processed. The original record's offset is already
/// committed by then, so a copy that is skipped would be lost.
fn from_the_beginning(consumer: &ClientConfig) -> Result<(), ConfigError> {
    match begins_elsewhere(consumer) {
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

    fn rungs() -> Rungs {
        let rungs = [("5s", 5 * SECOND), ("1m", 60 * SECOND), ("5m", 300 * SECOND)];
        Rungs::new(rungs.map(|(topic, delay)| (topic.to_owned(), delay)).into()).unwrap()
    }

    fn next(after: Option<Duration>, from: Option<&str>) -> Arc<str> {
        let rungs = rungs();
        rungs.next(after, from.map(|topic| rungs.of(topic).unwrap())).topic.clone()
    }

    #[test]
    fn each_failure_goes_at_least_one_topic_further_and_the_last_topic_to_itself() {
        for after in [None, Some(Duration::ZERO), Some(5 * SECOND)] {
            assert_eq!(&*next(after, None), "5s");
            assert_eq!(&*next(after, Some("5s")), "1m");
            assert_eq!(&*next(after, Some("1m")), "5m");
            assert_eq!(&*next(after, Some("5m")), "5m");
        }
    }

    #[test]
    fn a_longer_time_chooses_the_first_topic_that_is_not_too_early_or_the_last() {
        let more = Duration::from_nanos(1);
        for (after, topic) in [(5 * SECOND + more, "1m"), (60 * SECOND + more, "5m")] {
            assert_eq!(&*next(Some(after), None), topic);
            assert_eq!(&*next(Some(after), Some("5s")), topic);
        }
        for from in [None, Some("5s"), Some("1m"), Some("5m")] {
            assert_eq!(&*next(Some(3600 * SECOND), from), "5m");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_waits_no_longer_than_the_delay_since_it_was_received_whatever_the_clocks_say() {
        let rung = rungs().of("1m").unwrap().clone();
        let (received, ahead) = (Instant::now(), now() + 3600 * SECOND);
        assert_eq!(rung.left(ahead, received), Some(60 * SECOND));
        tokio::time::advance(20 * SECOND).await;
        assert_eq!(rung.left(ahead, received), Some(40 * SECOND));
        tokio::time::advance(40 * SECOND).await;
        assert_eq!(rung.left(ahead, received), None);
        // With clocks that agree, the copy may be due sooner.
        let left = rung.left(now() + SECOND, Instant::now()).unwrap();
        assert!(left <= SECOND && rung.left(now() - SECOND, Instant::now()).is_none(), "{left:?}");
    }

    #[test]
    fn a_consumer_that_would_not_begin_with_the_first_copy_is_refused() {
        let with = |reset: &str| {
            let mut client = ClientConfig::new();
            client.set("auto.offset.reset", reset);
            from_the_beginning(&client)
        };
        for reset in ["latest", "largest", "end", "error"] {
            let error = with(reset).unwrap_err().to_string();
            assert!(error.contains(reset) && error.contains("never be read"), "{error}");
        }
        assert!(["earliest", "smallest", "beginning"].iter().all(|reset| with(reset).is_ok()));
        assert!(from_the_beginning(&ClientConfig::new()).is_ok());
    }

    #[test]
    fn topics_that_make_no_ladder_are_refused() {
        let day = 86_400 * SECOND;
        for (rungs, why) in [
            (vec![], "no retry topic"),
            (vec![("", SECOND)], "not a valid topic name"),
            (vec![("^a", SECOND)], "not a valid topic name"),
            (vec![("a", SECOND), ("a", 2 * SECOND)], "more than once"),
            (vec![("a", SECOND), ("b", SECOND)], "`b` is 1s, but must be longer"),
            (vec![("a", Duration::ZERO)], "from 1 ms"),
            (vec![("a", day + SECOND)], "a day"),
        ] {
            let owned = rungs.into_iter().map(|(topic, delay)| (topic.to_owned(), delay));
            let error = Rungs::new(owned.collect()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Rungs::new(vec![("a".into(), day)]).is_ok());
    }
}
