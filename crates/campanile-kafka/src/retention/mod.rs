//! Checks that idempotency entries are kept at least as long as the records that they deduplicate.
//!
//! The layer notes on each record how long its entry will be kept, and the brokers report how long
//! the topic keeps its records. The brokers are asked once for each topic, after its first record
//! is finished. The request runs on a thread of its own, because dropping the client blocks.

mod ask;
mod judge;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use rdkafka::ClientConfig;

use self::ask::Answer;
use self::judge::{Kept, too_long};

/// A topic, and how long the entries of its records are kept.
type Topic = (Arc<str>, Duration);

/// The retention check for all topics of a consumer.
pub(crate) struct Retentions {
    /// `None` if the check is off.
    client: Option<ClientConfig>,
    seen: HashSet<Arc<str>>,
    /// The topics of the next request.
    next: Vec<Topic>,
    asked: Option<(Vec<Topic>, Receiver<Answer>)>,
}

impl Retentions {
    /// Creates a check that connects with the settings of this consumer.
    pub(crate) fn new(consumer: &ClientConfig) -> Self {
        let client = Some(crate::publish::shared_settings(consumer));
        Self { client, ..Self::off() }
    }

    pub(crate) fn off() -> Self {
        Self { client: None, seen: HashSet::new(), next: Vec::new(), asked: None }
    }

    /// Adds a topic, unless it is known already, and how long the entries of its records are kept.
    pub(crate) fn see(&mut self, topic: &Arc<str>, entries: Duration) {
        if self.client.is_some() && self.seen.insert(topic.clone()) {
            self.next.push((topic.clone(), entries));
        }
    }

    /// Logs the answer to the last request, and sends the next one. Called about once a second.
    pub(crate) fn go_on(&mut self) {
        if let Some((topics, answer)) = self.asked.take() {
            match answer.try_recv() {
                Ok(answer) => tell(&topics, answer),
                Err(TryRecvError::Empty) => self.asked = Some((topics, answer)),
                Err(TryRecvError::Disconnected) => unknown("the request was dropped"),
            }
        }
        if self.asked.is_none()
            && !self.next.is_empty()
            && let Some(client) = &self.client
        {
            let topics = std::mem::take(&mut self.next);
            let (told, answer) = sync_channel(1);
            match ask::spawn(client.clone(), topics.clone(), told) {
                Ok(()) => self.asked = Some((topics, answer)),
                Err(error) => unknown(&error.to_string()),
            }
        }
    }
}

fn tell(topics: &[Topic], answer: Answer) {
    let answers = match answer {
        Ok(answers) => answers,
        Err(error) => return unknown(&error.to_string()),
    };
    for answer in answers {
        let config = match answer {
            Ok(config) => config,
            Err(code) => {
                unknown(&code.to_string());
                continue;
            }
        };
        let topic = topics.iter().find(|(topic, _)| config.is_of(topic));
        let Some((topic, entries)) = topic else { continue };
        match Kept::of(&config) {
            Some(records) if too_long(records, *entries) => tracing::warn!(
                topic = &**topic,
                %records,
                entries = %Kept::For(*entries),
                "records of this topic are kept for longer than their idempotency entries: a \
                 record that is read again after its entry has expired, such as after an offset \
                 reset, runs again; raise the layer's `with_retention`, or lower the topic's \
                 `retention.ms`"
            ),
            Some(_) => {}
            None => unknown("the brokers did not return the topic's retention"),
        }
    }
}

fn unknown(error: &str) {
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
    fn each_topic_is_to_be_asked_for_once_and_none_if_that_is_off() {
        let mut on = Retentions::new(&ClientConfig::new());
        let mut off = Retentions::off();
        for topic in ["orders", "payments", "orders"] {
            on.see(&topic.into(), Duration::from_secs(60));
            off.see(&topic.into(), Duration::from_secs(60));
        }
        let names: Vec<&str> = on.next.iter().map(|(topic, _)| &**topic).collect();
        assert_eq!(names, ["orders", "payments"]);
        assert_eq!(off.next, []);
    }
}
