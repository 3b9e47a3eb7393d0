//! The consumer group: its members, its offsets, and what it may read.

use std::thread;
use std::time::Duration;

use campanile_core::Clock;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset};

use super::client::{Client, REQUEST_TIMEOUT};
use super::topic::{Role, Topic, WEEKEND};
use super::{is_classic, offsets};
use crate::doctor::finding::{FindingKind, Severity};
use crate::doctor::{Report, display};

/// The topic in which the brokers keep committed offsets.
const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// How long to wait before a group is asked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

const WITHOUT_OFFSETS: &str = "the group starts without offsets: where auto.offset.reset says";

/// Checks the group. `topics`: those of the deployment that exist.
pub(super) fn check(
    client: &Client<'_>,
    config: &ClientConfig,
    topics: &[Topic],
    observation: Option<Duration>,
    report: &mut Report,
) {
    let group = config.get("group.id").unwrap_or_default();
    let subject = format!("group `{group}`");
    let consumed: Vec<_> = topics.iter().filter(|topic| topic.role != Role::DeadLetter).collect();
    check_reset(config, &subject, report);
    let has_group = check_members(client, config, group, report);
    check_offsets_topic(client, config, &subject, report);
    let has_offsets = offsets::check(client, &consumed, &subject, observation, report);
    if (has_group, has_offsets) == (Some(false), Some(false)) {
        report.add(
            (FindingKind::GroupUnknown, Severity::Advice),
            &*subject,
            "the brokers know no such group: it has no members and no committed offsets",
            "if the consumer has run before, the name is wrong, and what is said of the group here \
             is not about its consumer",
            "compare the name with group.id of the consumer; before its first start, nothing to do",
        );
    }
    for topic in &consumed {
        check_read_permission(client, topic, report);
    }
    report.add_unchecked(
        "whether the user may join the group, and may write to dead-letter and retry topics",
        "trying would change the group and the topics; the ACLs are in the guide",
    );
}

/// Reads `auto.offset.reset`, unless a group without an offset begins at the first record.
fn non_earliest_reset(config: &ClientConfig) -> Option<&str> {
    let reset = config.get("auto.offset.reset");
    reset.filter(|reset| !matches!(*reset, "earliest" | "smallest" | "beginning"))
}

fn check_reset(config: &ClientConfig, subject: &str, report: &mut Report) {
    if let Some(reset) = non_earliest_reset(config) {
        report.add(
            (FindingKind::AutoOffsetReset, Severity::DataLoss),
            subject,
            format!("auto.offset.reset = {reset}"),
            "if the group has no offset for a partition, because the partition is new or the offset \
             has expired, the records that it contains are skipped",
            "set auto.offset.reset = earliest; records that are read again are duplicates",
        );
    }
}

/// Checks what the members use. Returns whether the group exists, as far as it is known.
fn check_members(
    client: &Client<'_>,
    config: &ClientConfig,
    group: &str,
    report: &mut Report,
) -> Option<bool> {
    let subject = format!("group `{group}`");
    if !is_classic(config) {
        report.add_unchecked(
            format!("the members of {subject}"),
            "librdkafka does not list those of the newer protocol; use kafka-consumer-groups",
        );
        return None;
    }
    let fetch = || client.consumer.fetch_group_list(Some(group), REQUEST_TIMEOUT);
    let groups = match retry_while_loading(fetch) {
        Ok(groups) => groups,
        Err(error) => {
            add_group_error(&error, &subject, "the members of", report);
            return None;
        }
    };
    let info = groups.groups().iter().find(|info| info.name() == group);
    let Some(info) = info.filter(|info| !matches!(info.state(), "" | "Dead")) else {
        return Some(false);
    };
    // A group without members may have no protocol.
    let protocol_type = info.protocol_type();
    if !matches!(protocol_type, "" | "consumer") {
        report.add(
            (FindingKind::GroupProtocol, Severity::Failure),
            subject,
            format!("it is a group of the type `{protocol_type}`, not of consumers"),
            "the consumer cannot join it",
            "use another group.id",
        );
        return Some(true);
    }
    let assignors = config.get("partition.assignment.strategy").unwrap_or_default();
    let assignor = info.protocol();
    let is_known = assignors.split(',').any(|known| known.trim() == assignor);
    if !info.members().is_empty() && !assignor.is_empty() && !is_known {
        report.add(
            (FindingKind::GroupProtocol, Severity::Failure),
            subject,
            format!("its members use the assignor `{assignor}`, but the consumer `{assignors}`"),
            "the consumer cannot join the group while they are members",
            "stop the other members first, or set partition.assignment.strategy to theirs",
        );
    }
    Some(true)
}

/// Sends a request again while the coordinator of the group loads, as it does for some seconds after a
/// broker has started. librdkafka does not repeat all requests.
fn retry_while_loading<T>(mut request: impl FnMut() -> KafkaResult<T>) -> KafkaResult<T> {
    let clock = Clock::boot();
    let start = clock.now();
    loop {
        let result = request();
        let code = result.as_ref().err().and_then(KafkaError::rdkafka_error_code);
        let is_loading = matches!(
            code,
            Some(
                Code::CoordinatorLoadInProgress
                    | Code::CoordinatorNotAvailable
                    | Code::NotCoordinator
            )
        );
        if !is_loading || clock.now() - start >= REQUEST_TIMEOUT {
            return result;
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

pub(super) fn add_group_error(error: &KafkaError, subject: &str, what: &str, report: &mut Report) {
    if error.rdkafka_error_code() == Some(Code::GroupAuthorizationFailed) {
        report.add(
            (FindingKind::KafkaPermission, Severity::Failure),
            subject,
            "the user may not describe the group",
            "the consumer does not start",
            "allow the user Read on the group",
        );
    } else {
        report.add_unchecked(format!("{what} {subject}"), error.to_string());
    }
}

/// Checks whether committed offsets are lost with a broker, or soon expire.
fn check_offsets_topic(
    client: &Client<'_>,
    config: &ClientConfig,
    subject: &str,
    report: &mut Report,
) {
    // Without an offset, the group reads the topic again, or skips what it contains.
    let reset_severity = match non_earliest_reset(config) {
        Some(_) => Severity::DataLoss,
        None => Severity::Advice,
    };
    let Ok(metadata) = client.metadata(OFFSETS_TOPIC) else { return };
    let topic = metadata.topics().iter().find(|topic| topic.name() == OFFSETS_TOPIC);
    if topic.and_then(|it| it.error()).map(Code::from) == Some(Code::TopicAuthorizationFailed) {
        report.add_unchecked(
            format!("the replicas of topic `{OFFSETS_TOPIC}`"),
            "the user may not describe it; allow the user Describe on the topic",
        );
    }
    let partitions = topic.map_or(&[][..], |topic| topic.partitions());
    if partitions.iter().any(|partition| partition.replicas().len() == 1) {
        report.add(
            (FindingKind::ReplicationFactor, reset_severity),
            format!("topic `{OFFSETS_TOPIC}`"),
            "a partition has a single replica",
            format!("if its broker's disk is lost, {WITHOUT_OFFSETS}"),
            "add replicas, and set offsets.topic.replication.factor = 3",
        );
    }
    let described = metadata.brokers().iter().map(|broker| {
        let described = client.describe(&ResourceSpecifier::Broker(broker.id()))?;
        let minutes = described.get("offsets.retention.minutes").and_then(|it| it.parse().ok());
        Ok(minutes.map(|minutes: u64| Duration::from_secs(minutes.saturating_mul(60))))
    });
    let retentions: Result<Vec<_>, String> = described.collect();
    match retentions {
        Ok(retentions) => check_offsets_retention(
            retentions.into_iter().flatten().min(),
            (subject, reset_severity),
            report,
        ),
        Err(error) => report.add_unchecked(
            "how long committed offsets are kept (offsets.retention.minutes)",
            format!("{error}; allow the user DescribeConfigs on the cluster"),
        ),
    }
}

/// `shortest`: how long a broker keeps the offsets of a group without members.
fn check_offsets_retention(
    shortest: Option<Duration>,
    (subject, severity): (&str, Severity),
    report: &mut Report,
) {
    let Some(shortest) = shortest.filter(|shortest| *shortest < WEEKEND) else { return };
    report.add(
        (FindingKind::OffsetsRetention, severity),
        subject,
        format!(
            "the offsets of a group without members are kept for {} (offsets.retention.minutes)",
            display(shortest)
        ),
        format!("after a longer outage, {WITHOUT_OFFSETS}"),
        "set offsets.retention.minutes of the brokers to more than the longest outage",
    );
}

/// Fetches the last record of one partition, outside of the group.
fn check_read_permission(client: &Client<'_>, topic: &Topic, report: &mut Report) {
    let Some(partition) = topic.partitions.iter().find(|partition| partition.has_leader) else {
        return;
    };
    match client.has_record(&topic.name, partition.id, Offset::OffsetTail(1)) {
        Ok(_) => {}
        Err(error) if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) => {
            report.add(
                (FindingKind::KafkaPermission, Severity::Failure),
                topic.subject(),
                "the user may not read the topic",
                "the consumer does not start",
                "allow the user Read on the topic",
            );
        }
        Err(error) => report.add_unchecked(
            format!("whether the user may read {}", topic.subject()),
            error.to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use campanile_kafka::ConsumerConfig;
    use campanile_test::{Message, MockKafka};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tokio::runtime::Runtime;

    use super::super::topic::Partition;
    use super::*;

    /// Checks a topic on a mock cluster that answers the first such request with this error.
    fn check_denied(
        request: RDKafkaApiKey,
        error: RDKafkaRespErr,
        check: impl FnOnce(&Client<'_>, &Topic, &mut Report),
    ) -> Report {
        let kafka = MockKafka::start(1).unwrap();
        kafka.create_topic("payments", 1).unwrap();
        kafka.producer().produce(Message::to("payments").payload("1")).unwrap();
        let config = ConsumerConfig::new(kafka.bootstrap(), "g").client_config().unwrap();
        let runtime = Runtime::new().unwrap();
        let client = Client::connect(&config, runtime.handle(), "payments").ok().unwrap();
        let partitions = vec![Partition { id: 0, has_leader: true, replicas: 1, in_sync: 1 }];
        let (name, role) = ("payments".to_owned(), Role::Source);
        let topic = Topic { name, role, partitions, config: None };
        kafka.cluster().request_errors(request, &[error]);
        let mut report = Report::default();
        check(&client, &topic, &mut report);
        report
    }

    #[test]
    fn denied_group_is_a_finding() {
        let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
        let report = check_denied(RDKafkaApiKey::OffsetFetch, denied, |client, topic, report| {
            offsets::check(client, &[topic], "group `g`", None, report);
        });
        let [finding] = &*report.findings else { panic!("{report}") };
        assert_eq!(finding.kind, FindingKind::KafkaPermission);
        assert_eq!(finding.observed, "the user may not describe the group");
    }

    #[test]
    fn only_a_request_to_a_loading_coordinator_is_repeated() {
        let repeated = |code| {
            let mut requests = 0;
            let result = retry_while_loading(|| {
                requests += 1;
                if requests == 1 { Err(KafkaError::GroupListFetch(code)) } else { Ok(()) }
            });
            (requests, result.is_ok())
        };
        assert_eq!(repeated(Code::CoordinatorLoadInProgress), (2, true));
        assert_eq!(repeated(Code::GroupAuthorizationFailed), (1, false));
    }

    #[test]
    fn topic_that_may_not_be_read_is_a_finding() {
        let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        let report = check_denied(RDKafkaApiKey::Fetch, denied, check_read_permission);
        let [finding] = &*report.findings else { panic!("{report}") };
        assert_eq!(finding.kind, FindingKind::KafkaPermission);
        assert_eq!(finding.observed, "the user may not read the topic");
    }

    #[test]
    fn offsets_that_expire_within_a_weekend_are_a_finding() {
        let check = |hours: u64| {
            let mut report = Report::default();
            let shortest = Some(Duration::from_secs(hours * 3600));
            check_offsets_retention(shortest, ("group `g`", Severity::Advice), &mut report);
            report.findings.first().map(|finding| finding.kind)
        };
        assert_eq!(check(24), Some(FindingKind::OffsetsRetention));
        assert_eq!(check(72), None);
    }
}
