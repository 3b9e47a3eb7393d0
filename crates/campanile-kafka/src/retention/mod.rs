//! Whether entries are kept for as long as the records that they answer.
//!
//! The layer notes on each record for how long its entry will be kept; the brokers tell for how long
//! the topic's records are. Asked once for each topic, after its first record was finished, by a
//! thread of its own: the client's end blocks.

mod ask;
mod judge;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use rdkafka::ClientConfig;

use self::ask::Answer;
use self::judge::{Kept, too_long};

/// A topic, and for how long the entries of its records are kept.
type Topic = (Arc<str>, Duration);

/// The check of all topics of a consumer.
pub(crate) struct Retentions {
    /// `None` if it is off.
    client: Option<ClientConfig>,
    seen: HashSet<Arc<str>>,
    /// What is to be asked for next.
    next: Vec<Topic>,
    asked: Option<(Vec<Topic>, Receiver<Answer>)>,
}

impl Retentions {
    /// Asks by the settings of this consumer.
    pub(crate) fn new(consumer: &ClientConfig) -> Self {
        let client = Some(crate::publish::shared_settings(consumer));
        Self { client, ..Self::off() }
    }

    pub(crate) fn off() -> Self {
        Self { client: None, seen: HashSet::new(), next: Vec::new(), asked: None }
    }

    /// The entries of this topic's records are kept for so long.
    pub(crate) fn see(&mut self, topic: &Arc<str>, entries: Duration) {
        if self.client.is_some() && self.seen.insert(topic.clone()) {
            self.next.push((topic.clone(), entries));
        }
    }

    /// Goes on: tells what was answered, and asks for what is new. About once a second.
    pub(crate) fn go_on(&mut self) {
        if let Some((topics, answer)) = self.asked.take() {
            match answer.try_recv() {
                Ok(answer) => tell(&topics, answer),
                Err(TryRecvError::Empty) => self.asked = Some((topics, answer)),
                Err(TryRecvError::Disconnected) => unknown("the question was given up"),
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
                "records of this topic are kept for longer than their entries: one that comes again \
                 after that, as by a reset of the group's offset, runs again; raise the layer's \
                 `with_retention`, or lower the topic's `retention.ms`"
            ),
            Some(_) => {}
            None => unknown("the brokers do not tell the topic's retention.ms"),
        }
    }
}

fn unknown(error: &str) {
    tracing::info!(
        error,
        "not looked at: whether records are kept for longer than their entries; allow the user \
         DescribeConfigs on the topics, or see to it yourself"
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
