//! Checks that idempotency entries are kept at least as long as the records that they deduplicate.
//!
//! The layer notes on each record how long its entry will be kept, and the brokers report how long
//! the topic keeps its records. The brokers are asked once for each topic, after its first record
//! is finished. The request runs on a thread of its own, because dropping the client blocks.

mod compare;
mod describe;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

pub use self::compare::RetentionTime;
use self::describe::DescribeResult;
pub use self::describe::TopicConfig;
use crate::client::ClientSettings;

/// A topic, and how long the entries of its records are kept.
type CheckedTopic = (Arc<str>, Duration);

/// The retention check for all topics of a consumer.
pub(crate) struct RetentionCheck {
    /// `None` if the check is off.
    client: Option<ClientSettings>,
    seen: HashSet<Arc<str>>,
    /// The topics of the next request.
    queued: Vec<CheckedTopic>,
    in_flight: Option<(Vec<CheckedTopic>, Receiver<DescribeResult>)>,
}

impl RetentionCheck {
    /// Creates a check that connects with the settings of this consumer.
    pub(crate) fn new(consumer: &ClientSettings) -> Self {
        let client = Some(crate::publish::shared_settings(consumer));
        Self { client, ..Self::disabled() }
    }

    pub(crate) fn disabled() -> Self {
        Self { client: None, seen: HashSet::new(), queued: Vec::new(), in_flight: None }
    }

    /// Adds a topic, unless it is known already, and how long the entries of its records are kept.
    pub(crate) fn add_topic(&mut self, topic: &Arc<str>, entries: Duration) {
        if self.client.is_some() && self.seen.insert(topic.clone()) {
            self.queued.push((topic.clone(), entries));
        }
    }

    /// Logs the answer to the last request, and sends the next one. Called about once a second.
    pub(crate) fn poll(&mut self) {
        if let Some((topics, result)) = self.in_flight.take() {
            match result.try_recv() {
                Ok(result) => log_results(&topics, result),
                Err(TryRecvError::Empty) => self.in_flight = Some((topics, result)),
                Err(TryRecvError::Disconnected) => log_unknown("the request was dropped"),
            }
        }
        if self.in_flight.is_none()
            && !self.queued.is_empty()
            && let Some(client) = &self.client
        {
            let topics = std::mem::take(&mut self.queued);
            let (sender, result) = sync_channel(1);
            match describe::spawn(client.clone(), topics.clone(), sender) {
                Ok(()) => self.in_flight = Some((topics, result)),
                Err(error) => log_unknown(&error.to_string()),
            }
        }
    }
}

fn log_results(topics: &[CheckedTopic], result: DescribeResult) {
    let results = match result {
        Ok(results) => results,
        Err(error) => return log_unknown(&error.to_string()),
    };
    for result in results {
        let config = match result {
            Ok(config) => config,
            Err(code) => {
                log_unknown(&code.to_string());
                continue;
            }
        };
        let topic = topics.iter().find(|(topic, _)| config.is_for(topic));
        let Some((topic, entries)) = topic else { continue };
        match RetentionTime::of_topic(&config) {
            Some(records) if records.outlives(*entries) => tracing::warn!(
                topic = &**topic,
                %records,
                entries = %RetentionTime::For(*entries),
                "records of this topic are kept for longer than their idempotency entries: a \
                 record that is read again after its entry has expired, such as after an offset \
                 reset, runs again; raise `IdempotencyConfig::with_retention`, or lower the topic's \
                 `retention.ms`"
            ),
            Some(_) => {}
            // rdkafka does not report that the brokers refuse it.
            None => log_unknown(&format!(
                "the brokers did not return the retention of topic `{topic}`; allow the user \
                 `DescribeConfigs` on the topic"
            )),
        }
    }
}

fn log_unknown(error: &str) {
    tracing::info!(
        error,
        "could not check whether records are kept for longer than their idempotency entries; \
         allow the user DescribeConfigs on the topics, or compare the two yourself"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_queued_once_and_never_when_disabled() {
        let mut on = RetentionCheck::new(&ClientSettings::default());
        let mut off = RetentionCheck::disabled();
        for topic in ["orders", "payments", "orders"] {
            on.add_topic(&topic.into(), Duration::from_secs(60));
            off.add_topic(&topic.into(), Duration::from_secs(60));
        }
        let names: Vec<&str> = on.queued.iter().map(|(topic, _)| &**topic).collect();
        assert_eq!(names, ["orders", "payments"]);
        assert_eq!(off.queued, []);
    }
}
