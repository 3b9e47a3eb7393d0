//! The brokers, the topics and the group.

mod client;
mod group;
mod offsets;
mod topic;

use std::time::Duration;

use rdkafka::ClientConfig;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use self::client::{Client, ConnectFailure};
use self::topic::{Role, Topic};
use super::finding::{FindingKind, Severity};
use super::{Deployment, Report};

/// What the comparison of settings needs from Kafka.
#[derive(Default)]
pub(super) struct Facts {
    /// `None` if the brokers decide.
    pub(super) session_timeout: Option<Duration>,
    pub(super) max_poll_interval: Option<Duration>,
    /// How long each consumed topic keeps its records, as far as it is known.
    pub(super) source_retentions: Vec<(String, Duration)>,
}

/// Examines Kafka on a thread on which librdkafka may block.
pub(super) async fn examine(deployment: &Deployment) -> (Report, Facts) {
    let (deployment, runtime) = (deployment.clone(), Handle::current());
    let examined = spawn_blocking(move || {
        let (mut report, mut facts) = Default::default();
        examine_blocking(&deployment, &runtime, &mut report, &mut facts);
        (report, facts)
    });
    examined.await.unwrap_or_else(|error| {
        let mut report = Report::default();
        report.add_unchecked("Kafka", error.to_string());
        (report, Facts::default())
    })
}

fn examine_blocking(
    deployment: &Deployment,
    runtime: &Handle,
    report: &mut Report,
    facts: &mut Facts,
) {
    let config = deployment.consumer.client_config();
    let config = config.and_then(|config| match deployment.topics.is_empty() {
        false => Ok(config),
        true => Err(campanile_core::ConfigError::new("the consumer subscribes to no topic")),
    });
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            return report.add(
                (FindingKind::InvalidSetting, Severity::Failure),
                "the consumer",
                error.to_string(),
                "the consumer does not start",
                "correct the setting",
            );
        }
    };
    read_timeouts(&config, facts);
    let (topics, patterns) = topics_of(deployment);
    for pattern in patterns {
        report.add_unchecked(
            format!("the topics that match `{pattern}`"),
            "regular expressions are not resolved; name the topics",
        );
    }
    let client = match Client::connect(&config, runtime, &deployment.topics[0]) {
        Ok(client) => client,
        Err(failure) => return add_failure(&config, &failure, report),
    };
    report.add_unchecked(
        "the versions and the clocks of the brokers",
        "librdkafka does not report them",
    );
    let topics: Vec<_> = topics
        .into_iter()
        .filter_map(|(name, role)| Topic::read(&client, name, role, report))
        .collect();
    let sources = topics.iter().filter(|topic| topic.role == Role::Source);
    facts.source_retentions =
        sources.filter_map(|topic| Some((topic.name.clone(), topic.retention()?))).collect();
    for topic in &topics {
        topic.check(&topics, report);
    }
    group::check(&client, &config, &topics, deployment.observation, report);
}

/// Reads the timeouts, including librdkafka's defaults.
fn read_timeouts(config: &ClientConfig, facts: &mut Facts) {
    let Ok(native) = config.create_native_config() else { return };
    let millis = |name| Some(Duration::from_millis(native.get(name).ok()?.parse().ok()?));
    facts.max_poll_interval = millis("max.poll.interval.ms");
    if is_classic(config) {
        facts.session_timeout = millis("session.timeout.ms");
    }
}

/// Checks whether the group uses the classic protocol, in which the members decide.
fn is_classic(config: &ClientConfig) -> bool {
    config.get("group.protocol").is_none_or(|protocol| protocol == "classic")
}

/// All topics of the deployment, and separately the regular expressions among them.
fn topics_of(deployment: &Deployment) -> (Vec<(String, Role)>, Vec<String>) {
    let (patterns, topics): (Vec<_>, Vec<_>) =
        deployment.topics.iter().cloned().partition(|topic| topic.starts_with('^'));
    let sources = topics.into_iter().map(|topic| (topic, Role::Source));
    let retries = deployment.retry_topics.iter().map(|(topic, _)| (topic.clone(), Role::Retry));
    let letters = deployment.dead_letter_topics.iter().map(|it| (it.clone(), Role::DeadLetter));
    (sources.chain(retries).chain(letters).collect(), patterns)
}

fn add_failure(config: &ClientConfig, failure: &ConnectFailure, report: &mut Report) {
    let (kind, reason, remedy) = match failure {
        ConnectFailure::Unreachable(reason) => (
            FindingKind::BrokersUnreachable,
            reason,
            "start the brokers, or correct bootstrap.servers and security.protocol",
        ),
        ConnectFailure::Authentication(reason) => (
            FindingKind::KafkaAuthentication,
            reason,
            "correct sasl.mechanisms, sasl.username and sasl.password",
        ),
        ConnectFailure::Tls(reason) => (
            FindingKind::KafkaTls,
            reason,
            "correct ssl.ca.location, the client's certificate, or security.protocol",
        ),
    };
    let brokers = config.get("bootstrap.servers").or(config.get("metadata.broker.list"));
    report.add(
        (kind, Severity::Failure),
        format!("the brokers at {}", brokers.unwrap_or_default()),
        reason.clone(),
        "the consumer does not start",
        remedy,
    );
    report.add_unchecked("the topics and the group", "the brokers cannot be asked");
}
