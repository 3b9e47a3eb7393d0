//! Startup: waits until the brokers answer and the topics exist, then joins the group.

use std::time::Duration;

use campanile_core::Clock;
use campanile_driver::ConsumerError;
use campanile_driver::private::chain;
use campanile_driver::source::Event;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::context::Context;
use super::errors::handle_error;
use super::{KafkaSource, Settings};
use crate::config::uses_newer_protocol;
use crate::native::{self, set_oauth_token};

/// The timeout of the first metadata requests.
const MIN_METADATA_TIMEOUT: Duration = Duration::from_millis(500);

/// The timeout of one metadata request, and so the longest time that a shutdown waits. The timeout grows
/// up to this while the consumer waits, since brokers may be slow.
const MAX_METADATA_TIMEOUT: Duration = Duration::from_secs(3);

/// How long to wait before missing topics, or unreachable brokers, are asked again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a topic may be unknown. A new topic is unknown until all brokers have learned of it.
const UNKNOWN_TOPIC_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the group may have no place for the consumer, unless the start timeout is longer. A killed
/// member has its place for a session, which lasts for 45 s by default.
const PLACE_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// How long to wait before a group without a place is joined again.
const PLACE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Starts the source. Waits while the group has no place for the consumer because it still has a member
/// that was killed. After such a refusal, librdkafka's client has failed for good, so each attempt
/// creates a new one.
pub(crate) fn start(settings: &Settings) -> Result<KafkaSource, ConsumerError> {
    let clock = Clock::boot();
    let limit = PLACE_TIMEOUT.max(settings.start_timeout);
    let deadline = clock.now() + limit;
    loop {
        let error = match KafkaSource::start(settings) {
            Err(error) if is_without_place(&error) => error,
            result => return result,
        };
        let left = deadline.saturating_sub(clock.now());
        if left.is_zero() {
            let what = format!(
                "the group has had no place for this consumer for {limit:?}: give each process its own \
                 `group.instance.id`, or raise `group.consumer.max.size`: {error}"
            );
            return Err(ConsumerError::kafka(what, None));
        }
        if let Some(suppressed) = settings.log_limit.allow("no place in the group") {
            tracing::warn!(
                error = chain(&error),
                group_instance_id = settings.client.get("group.instance.id"),
                ?left,
                suppressed,
                "the group has no place for this consumer; retrying until the brokers remove a member \
                 that was killed, at the end of its session (`group.consumer.session.timeout.ms` of the \
                 brokers)"
            );
        }
        // At a shutdown, the source starts without joining the group.
        let retry_at = clock.now() + PLACE_RETRY_DELAY;
        while clock.now() < retry_at && !settings.context.is_shutting_down() {
            settings.context.report_progress();
            std::thread::park_timeout(RETRY_DELAY);
        }
    }
}

/// Checks whether another member has the same `group.instance.id`, or the group has as many members as
/// `group.consumer.max.size` allows.
fn is_without_place(error: &ConsumerError) -> bool {
    let ConsumerError::Kafka { source: Some(error), .. } = error else { return false };
    let refusals = [Code::UnreleasedInstanceId, Code::GroupMaxSizeReached];
    let error = error.downcast_ref();
    error.is_some_and(|error| refusals.map(KafkaError::MessageConsumptionFatal).contains(error))
}

/// Requests the metadata of every topic until all requests are answered. Without this check,
/// librdkafka would retry forever without an error.
pub(super) fn check(
    consumer: &BaseConsumer<Context>,
    settings: &Settings,
) -> Result<(), ConsumerError> {
    let clock = Clock::boot();
    let start = clock.now();
    // Counted from the first answer: slow brokers do not shorten the time that a new topic has.
    let mut unknown_since = None;
    let consumed = settings.topics.iter().map(|topic| match settings.retry_topics.find(topic) {
        Some(_) => (&**topic, TopicUse::Retries),
        None => (&**topic, TopicUse::Consumed),
    });
    let written = settings.dead_letter_topics.iter().map(|topic| (&**topic, TopicUse::DeadLetters));
    let mut topics: Vec<_> = consumed.chain(written).collect();
    let mut cause = None;
    let mut has_token = settings.client.tokens.is_none();
    while !topics.is_empty() {
        if let Some(tokens) = &settings.client.tokens
            && !has_token
            && let Some(token) = tokens.latest(MIN_METADATA_TIMEOUT)
        {
            // The consumer is not polled yet, so librdkafka's request for a token is not answered.
            set_oauth_token(consumer.client(), token);
            has_token = true;
        }
        let (mut unknown, mut unreached) = (Vec::new(), None);
        let waited = clock.now() - start;
        let left = settings.start_timeout.saturating_sub(waited);
        let timeout = (waited / 2).min(MAX_METADATA_TIMEOUT).min(left).max(MIN_METADATA_TIMEOUT);
        for &(topic, topic_use) in &topics {
            if settings.context.is_shutting_down() {
                return Ok(());
            }
            settings.context.report_progress();
            match look_up_topic(consumer, topic, timeout) {
                TopicState::Exists => {}
                TopicState::Unknown => unknown.push((topic, topic_use)),
                TopicState::Refused(error) => {
                    return Err(refused_topic_error(topic, topic_use, error));
                }
                TopicState::Unreached(error) => {
                    unreached = Some(error);
                    break;
                }
            }
        }
        let waited = clock.now() - start;
        let log_limit = &consumer.context().log_limit;
        if let Some(error) = unreached {
            cause = connection_error(consumer).or(cause);
            if waited >= settings.start_timeout {
                return Err(no_broker_error(settings, error, cause));
            }
            if let Some(suppressed) = log_limit.allow("no broker answered") {
                tracing::warn!(
                    brokers = settings.brokers,
                    error = cause.as_ref().map_or_else(|| chain(&error), |(_, text)| text.clone()),
                    start_timeout = ?settings.start_timeout,
                    suppressed,
                    "no broker answered; retrying until the start timeout"
                );
            }
        } else {
            // Only missing topics are requested again, and all of them are reported together.
            topics = unknown;
            let unknown_for = waited - *unknown_since.get_or_insert(waited);
            let is_late = unknown_for >= UNKNOWN_TOPIC_TIMEOUT || waited >= settings.start_timeout;
            if !topics.is_empty() && is_late {
                let all: Vec<_> = topics
                    .iter()
                    .map(|(topic, topic_use)| missing_topic_error(topic, *topic_use))
                    .collect();
                return Err(ConsumerError::kafka(all.join("; "), None));
            }
            for (topic, _) in &topics {
                if log_limit.allow(&format!("missing topic {topic}")).is_some() {
                    let brokers = &settings.brokers;
                    tracing::warn!(brokers, topic, "topic does not exist yet; retrying");
                }
            }
        }
        if !topics.is_empty() {
            std::thread::park_timeout(RETRY_DELAY);
        }
    }
    Ok(())
}

/// Joins the group, unless a shutdown is requested. In the newer protocol, the brokers may refuse the
/// consumer, so this waits until it is a member.
pub(super) fn join(
    consumer: &BaseConsumer<Context>,
    settings: &Settings,
) -> Result<(), ConsumerError> {
    subscribe(consumer, settings)?;
    while uses_newer_protocol(&settings.client)
        && !native::is_member(consumer)
        && !settings.context.is_shutting_down()
    {
        settings.context.report_progress();
        if let Some(Err(error)) = consumer.poll(RETRY_DELAY) {
            let reason = consumer.context().take_reason().unwrap_or_else(|| error.to_string());
            let mut events = Vec::new();
            handle_error(consumer.context(), error, reason, &mut events);
            if let Some(Event::Failed(error)) = events.pop() {
                return Err(error);
            }
        }
    }
    Ok(())
}

fn subscribe(consumer: &BaseConsumer<Context>, settings: &Settings) -> Result<(), ConsumerError> {
    if settings.context.is_shutting_down() {
        return Ok(());
    }
    let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
    let names = topics.join(", ");
    consumer.subscribe(&topics).map_err(|error| {
        ConsumerError::kafka(format!("failed to subscribe to {names}"), Some(error.into()))
    })?;
    tracing::info!(
        topics = names,
        "joining the group; the partitions of a killed member are assigned after its `session.timeout.ms`"
    );
    Ok(())
}

/// Checks whether the consumer is joining its group or has joined it.
pub(super) fn is_subscribed(consumer: &BaseConsumer<Context>) -> bool {
    consumer.subscription().is_ok_and(|topics| topics.count() > 0)
}

#[derive(Clone, Copy)]
enum TopicUse {
    Consumed,
    Retries,
    DeadLetters,
}

fn missing_topic_error(topic: &str, topic_use: TopicUse) -> String {
    match topic_use {
        TopicUse::Consumed => {
            format!("topic `{topic}` does not exist: create it, or correct its name")
        }
        TopicUse::Retries => format!(
            "retry topic `{topic}` does not exist: create it, with any number of partitions and a \
             retention longer than any outage of this consumer, or correct its name"
        ),
        TopicUse::DeadLetters => format!(
            "dead-letter topic `{topic}` does not exist: create it, with any number of partitions \
             and a retention that leaves time to inspect the dead letters, or correct its name"
        ),
    }
}

fn refused_topic_error(topic: &str, topic_use: TopicUse, error: Code) -> ConsumerError {
    let mut what = format!("topic `{topic}`: {error}");
    if error == Code::TopicAuthorizationFailed {
        let right = match topic_use {
            TopicUse::Consumed => "`Read`",
            TopicUse::Retries => "`Read` and `Write`",
            TopicUse::DeadLetters => "`Write`",
        };
        what.push_str(&format!("; allow the user {right} on the topic"));
    }
    ConsumerError::kafka(what, None)
}

enum TopicState {
    Exists,
    Unknown,
    Refused(Code),
    Unreached(KafkaError),
}

fn look_up_topic(consumer: &BaseConsumer<Context>, topic: &str, timeout: Duration) -> TopicState {
    // librdkafka takes a name that starts with `^` as a regular expression, which may match no
    // topic yet.
    let name_filter = (!topic.starts_with('^')).then_some(topic);
    let metadata = match consumer.fetch_metadata(name_filter, timeout) {
        Ok(metadata) => metadata,
        Err(error) => return TopicState::Unreached(error),
    };
    let error =
        metadata.topics().iter().find(|t| name_filter == Some(t.name())).and_then(|t| t.error());
    match error.map(Code::from) {
        None | Some(Code::LeaderNotAvailable) => TopicState::Exists,
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => TopicState::Unknown,
        Some(error) => TopicState::Refused(error),
    }
}

/// Takes the last error of a connection that librdkafka has reported since the last call.
fn connection_error(consumer: &BaseConsumer<Context>) -> Option<(Code, String)> {
    let mut last = None;
    while let Some(event) = consumer.poll(Duration::ZERO) {
        let code = event.err().and_then(|error| error.rdkafka_error_code());
        // That all brokers are down follows the reason.
        if let Some(code) = code.filter(|code| *code != Code::AllBrokersDown)
            && let Some(text) = consumer.context().take_reason()
        {
            last = Some((code, text));
        }
    }
    last
}

fn no_broker_error(
    settings: &Settings,
    error: KafkaError,
    cause: Option<(Code, String)>,
) -> ConsumerError {
    let Settings { brokers, start_timeout, .. } = settings;
    let advice = match &cause {
        Some((Code::Authentication | Code::SaslAuthenticationFailed, _)) => {
            "correct `sasl.mechanism`, `sasl.username` and `sasl.password`"
        }
        Some((Code::SSL, _)) => {
            "correct `ssl.ca.location`, the client's certificate, or `security.protocol`"
        }
        _ => "check the addresses, and that the brokers are up",
    };
    let mut what = format!("no broker of `{brokers}` answered within {start_timeout:?}: {advice}");
    if let Some((_, text)) = cause {
        what.push_str(&format!(" ({text})"));
    }
    ConsumerError::kafka(what, Some(error.into()))
}
