//! Startup: waits until the brokers answer and the topics exist, then joins the group.

use std::collections::BTreeSet;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::Settings;
use super::context::Context;
use crate::error::ConsumerError;

/// The timeout of one metadata request, and so the longest time that a shutdown waits.
const QUESTION: Duration = Duration::from_millis(500);

/// How long a topic may be unknown. A new topic is unknown until all brokers have learned of it.
const UNKNOWN: Duration = Duration::from_secs(5);

/// Requests the metadata of every topic until all requests are answered. Without this check,
/// librdkafka would retry forever without an error.
pub(super) fn check(
    consumer: &BaseConsumer<Context>,
    settings: &Settings,
) -> Result<(), ConsumerError> {
    let clock = Clock::boot();
    let start = clock.now();
    let mut told = BTreeSet::new();
    let consumed = settings.topics.iter().map(|topic| match settings.rungs.of(topic) {
        Some(_) => (&**topic, Use::Retries),
        None => (&**topic, Use::Consumed),
    });
    let written = settings.dead_letter_topics.iter().map(|topic| (&**topic, Use::DeadLetters));
    let mut topics: Vec<_> = consumed.chain(written).collect();
    while !topics.is_empty() {
        let (mut unknown, mut unreached) = (Vec::new(), None);
        for &(topic, of) in &topics {
            if settings.control.is_shutting_down() {
                return Ok(());
            }
            settings.control.vitals().round();
            match ask(consumer, topic) {
                Answer::Good => {}
                Answer::Unknown => unknown.push((topic, of)),
                Answer::Refused(error) => {
                    return Err(ConsumerError::kafka(format!("topic `{topic}`: {error}"), None));
                }
                Answer::Unreached(error) => {
                    unreached = Some(error);
                    break;
                }
            }
        }
        let waited = clock.now() - start;
        let troubles = if let Some(error) = unreached {
            if waited >= settings.start_timeout {
                return Err(silent(settings, error));
            }
            vec![format!("no broker answered; retrying: {error}")]
        } else {
            // Only missing topics are requested again, and all of them are reported together.
            topics = unknown;
            if !topics.is_empty() && waited >= UNKNOWN.min(settings.start_timeout) {
                let all: Vec<_> = topics.iter().map(|(topic, of)| missing(topic, *of)).collect();
                return Err(ConsumerError::kafka(all.join("; "), None));
            }
            topics
                .iter()
                .map(|(topic, _)| format!("topic `{topic}` does not exist yet; retrying"))
                .collect()
        };
        for trouble in troubles {
            if !told.contains(&trouble) {
                tracing::warn!(brokers = settings.brokers, "{trouble}");
                told.insert(trouble);
            }
        }
        if !topics.is_empty() {
            std::thread::park_timeout(QUESTION / 5);
        }
    }
    Ok(())
}

/// Joins the group, unless a shutdown was requested.
pub(super) fn subscribe(
    consumer: &BaseConsumer<Context>,
    settings: &Settings,
) -> Result<(), ConsumerError> {
    if settings.control.is_shutting_down() {
        return Ok(());
    }
    let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
    consumer.subscribe(&topics).map_err(|error| {
        ConsumerError::kafka(format!("failed to subscribe to {}", topics.join(", ")), Some(error))
    })
}

/// Returns whether the consumer is joining its group or has joined it.
pub(super) fn is_subscribed(consumer: &BaseConsumer<Context>) -> bool {
    consumer.subscription().is_ok_and(|topics| topics.count() > 0)
}

#[derive(Clone, Copy)]
enum Use {
    Consumed,
    Retries,
    DeadLetters,
}

fn missing(topic: &str, of: Use) -> String {
    match of {
        Use::Consumed => {
            format!("topic `{topic}` does not exist: create it, or correct its name")
        }
        Use::Retries => format!(
            "retry topic `{topic}` does not exist: create it, with any number of partitions and a \
             retention longer than any outage of this consumer, or correct its name"
        ),
        Use::DeadLetters => format!(
            "dead-letter topic `{topic}` does not exist: create it, with any number of partitions \
             and a retention that leaves time to inspect the dead letters, or correct its name"
        ),
    }
}

enum Answer {
    Good,
    Unknown,
    Refused(Code),
    Unreached(KafkaError),
}

fn ask(consumer: &BaseConsumer<Context>, topic: &str) -> Answer {
    // librdkafka takes a name that starts with `^` as a regular expression, which may match no
    // topic yet.
    let asked = (!topic.starts_with('^')).then_some(topic);
    let metadata = match consumer.fetch_metadata(asked, QUESTION) {
        Ok(metadata) => metadata,
        Err(error) => return Answer::Unreached(error),
    };
    let error = metadata.topics().iter().find(|t| asked == Some(t.name())).and_then(|t| t.error());
    match error.map(Code::from) {
        None | Some(Code::LeaderNotAvailable) => Answer::Good,
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Answer::Unknown,
        Some(error) => Answer::Refused(error),
    }
}

fn silent(settings: &Settings, error: KafkaError) -> ConsumerError {
    let what = format!(
        "no broker of `{}` answered within {:?}: check the addresses, and that the brokers are up",
        settings.brokers, settings.start_timeout
    );
    ConsumerError::kafka(what, Some(error))
}
