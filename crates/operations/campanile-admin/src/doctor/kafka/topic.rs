//! The topics that are consumed, and those to which records are published.

use std::fmt;
use std::time::Duration;

use rdkafka::admin::ResourceSpecifier;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::client::Client;
use crate::doctor::finding::{FindingKind, Severity};
use crate::doctor::{Report, display};
use crate::kafka::TopicConfig;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Over a weekend, nobody looks at dead letters or restarts a consumer.
pub(super) const WEEKEND: Duration = DAY.saturating_mul(3);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Source,
    Retry,
    DeadLetter,
}

pub(super) struct Topic {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) partitions: Vec<Partition>,
    /// `None` if the user may not read the settings.
    pub(super) config: Option<TopicConfig>,
}

pub(super) struct Partition {
    pub(super) id: i32,
    pub(super) has_leader: bool,
    pub(super) replicas: usize,
    pub(super) in_sync: usize,
}

impl Topic {
    /// Reads the topic's partitions and settings. Adds why it cannot.
    pub(super) fn read(
        client: &Client<'_>,
        name: String,
        role: Role,
        report: &mut Report,
    ) -> Option<Self> {
        let partitions = read_partitions(client, &name, role, report)?;
        let config = match client.describe(&ResourceSpecifier::Topic(&name)) {
            Ok(config) => Some(config),
            Err(error) => {
                report.add_unchecked(
                    format!("the settings of {}", Subject(&name, role)),
                    format!("{error}; allow the user DescribeConfigs on the topic"),
                );
                None
            }
        };
        Some(Self { name, role, partitions, config })
    }

    pub(super) fn subject(&self) -> String {
        Subject(&self.name, self.role).to_string()
    }

    /// How long the records are kept.
    pub(super) fn retention(&self) -> Option<Duration> {
        self.config.as_ref()?.retention()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name)
    }

    fn max_message_bytes(&self) -> Option<u64> {
        self.setting("max.message.bytes")?.parse().ok()
    }

    /// Checks the topic against what it is for. `all`: the topics of the deployment.
    pub(super) fn check(&self, all: &[Self], report: &mut Report) {
        self.check_replication(report);
        if self.role != Role::Source {
            let sources: Vec<_> = all.iter().filter(|topic| topic.role == Role::Source).collect();
            self.check_compaction(report);
            self.check_retention(report);
            self.check_message_size(&sources, report);
        }
    }

    fn check_replication(&self, report: &mut Report) {
        let without_leader = self.partitions.iter().filter(|it| !it.has_leader).count();
        if without_leader > 0 {
            report.add(
                (FindingKind::NoLeader, Severity::Failure),
                self.subject(),
                format!("{without_leader} of {} partitions have no leader", self.partitions.len()),
                "their records are neither read nor written",
                "start the brokers that have their replicas",
            );
        }
        let replicas = self.partitions.iter().map(|partition| partition.replicas).min();
        let min_in_sync: usize =
            self.setting("min.insync.replicas").and_then(|n| n.parse().ok()).unwrap_or(1);
        if replicas == Some(1) {
            report.add(
                (FindingKind::ReplicationFactor, Severity::DataLoss),
                self.subject(),
                "a partition has a single replica",
                "the loss of its broker's disk loses all its records",
                "add replicas, at least 3 in all (kafka-reassign-partitions)",
            );
        } else if self.setting("min.insync.replicas") == Some("1") {
            report.add(
                (FindingKind::MinInsyncReplicas, Severity::DataLoss),
                self.subject(),
                "a write is acknowledged when a single replica has it (min.insync.replicas = 1)",
                "the loss of that replica loses acknowledged records",
                "set min.insync.replicas = 2",
            );
        }
        let lagging = self.partitions.iter().filter(|it| it.in_sync < it.replicas).count();
        if lagging > 0 {
            let is_read_only = self.partitions.iter().any(|it| it.in_sync < min_in_sync);
            let (severity, risk) = if is_read_only {
                (Severity::Failure, "some partitions refuse writes")
            } else {
                (Severity::Advice, "if more replicas fail, writes are refused")
            };
            report.add(
                (FindingKind::UnderReplicated, severity),
                self.subject(),
                format!("{lagging} of {} partitions lack replicas in sync", self.partitions.len()),
                risk,
                "start the brokers that have the other replicas",
            );
        }
        if self.setting("unclean.leader.election.enable") == Some("true") {
            report.add(
                (FindingKind::UncleanLeaderElection, Severity::DataLoss),
                self.subject(),
                "unclean.leader.election.enable = true",
                "a replica that lacks acknowledged records can become the leader, and they are lost",
                "set unclean.leader.election.enable = false",
            );
        }
    }

    fn check_compaction(&self, report: &mut Report) {
        let policy = self.setting("cleanup.policy").unwrap_or_default();
        if policy.contains("compact") {
            report.add(
                (FindingKind::Compacted, Severity::DataLoss),
                self.subject(),
                format!("cleanup.policy = {policy}"),
                "of the records with one key only the last is kept, and those without a key are \
                 refused",
                "set cleanup.policy = delete",
            );
        }
    }

    /// Letters and copies are kept from their publication on, however old their records are.
    fn check_retention(&self, report: &mut Report) {
        let Some(kept) = self.retention() else { return };
        let risk = match self.role {
            Role::DeadLetter => "dead letters are deleted before anybody has seen them",
            _ => "records that wait for a retry are deleted during an outage, unprocessed",
        };
        if kept < WEEKEND {
            report.add(
                (FindingKind::ShortRetention, Severity::DataLoss),
                self.subject(),
                format!("records are kept for {}", display(kept)),
                risk,
                "raise retention.ms to more than the longest outage, at least 3 d",
            );
        }
    }

    fn check_message_size(&self, sources: &[&Self], report: &mut Report) {
        let Some(own) = self.max_message_bytes() else { return };
        let larger = sources.iter().find_map(|source| {
            let bytes = source.max_message_bytes().filter(|bytes| *bytes > own)?;
            Some((source, bytes))
        });
        if let Some((source, bytes)) = larger {
            let (severity, risk) = match self.role {
                Role::DeadLetter => {
                    (Severity::DataLoss, "a dead letter of a larger record lacks the payload")
                }
                _ => (Severity::Advice, "a larger record is retried in place, and holds up others"),
            };
            report.add(
                (FindingKind::MessageSize, severity),
                self.subject(),
                format!("max.message.bytes is {own}, but {bytes} for {}", source.subject()),
                risk,
                "raise max.message.bytes above that of the source, which leaves space for headers",
            );
        }
    }
}

/// Names a topic in the report.
struct Subject<'a>(&'a str, Role);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.1 {
            Role::Source => "topic",
            Role::Retry => "retry topic",
            Role::DeadLetter => "dead-letter topic",
        };
        write!(f, "{role} `{}`", self.0)
    }
}

fn read_partitions(
    client: &Client<'_>,
    name: &str,
    role: Role,
    report: &mut Report,
) -> Option<Vec<Partition>> {
    let subject = Subject(name, role).to_string();
    let metadata = match client.metadata(name) {
        Ok(metadata) => metadata,
        Err(error) => {
            report.add_unchecked(subject, error.to_string());
            return None;
        }
    };
    let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
    match topic.error().map(Code::from) {
        None | Some(Code::LeaderNotAvailable) => {}
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
            report.add(
                (FindingKind::TopicMissing, Severity::Failure),
                subject,
                "it does not exist",
                "the consumer does not start",
                "create the topic, or correct its name",
            );
            return None;
        }
        Some(Code::TopicAuthorizationFailed) => {
            report.add(
                (FindingKind::KafkaPermission, Severity::Failure),
                subject,
                "the user may not describe the topic",
                "the consumer does not start",
                match role {
                    Role::Source => "allow the user Read on the topic",
                    Role::Retry => "allow the user Read and Write on the topic",
                    Role::DeadLetter => "allow the user Write on the topic",
                },
            );
            return None;
        }
        Some(error) => {
            report.add_unchecked(subject, error.to_string());
            return None;
        }
    }
    let partitions = topic.partitions().iter().map(|partition| Partition {
        id: partition.id(),
        has_leader: partition.leader() >= 0,
        replicas: partition.replicas().len(),
        in_sync: partition.isr().len(),
    });
    Some(partitions.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings about a topic with one partition.
    fn findings(has_leader: bool, replicas: usize, in_sync: usize) -> Vec<(FindingKind, Severity)> {
        let partitions = vec![Partition { id: 0, has_leader, replicas, in_sync }];
        let name = "payments".to_owned();
        let topic = Topic { name, role: Role::Source, partitions, config: None };
        let mut report = Report::default();
        topic.check_replication(&mut report);
        report.findings.iter().map(|finding| (finding.kind, finding.severity)).collect()
    }

    #[test]
    fn missing_replicas_are_findings_by_what_they_prevent() {
        assert_eq!(findings(true, 3, 3), []);
        let advice = (FindingKind::UnderReplicated, Severity::Advice);
        assert_eq!(findings(true, 3, 2), [advice]);
        let no_leader = (FindingKind::NoLeader, Severity::Failure);
        let no_writes = (FindingKind::UnderReplicated, Severity::Failure);
        assert_eq!(findings(false, 3, 0), [no_leader, no_writes]);
        assert_eq!(findings(true, 1, 1), [(FindingKind::ReplicationFactor, Severity::DataLoss)]);
    }
}
