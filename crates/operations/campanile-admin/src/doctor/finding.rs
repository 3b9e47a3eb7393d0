//! What was found, and how severe it is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use campanile_core::ConfigError;
use serde::de::{IntoDeserializer, value};
use serde::{Deserialize, Serialize};

/// The severity of a [`Finding`], the least severe first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Severity {
    /// Worth a change. Nothing is lost, and nothing fails.
    Advice,
    /// The consumer does not start, or stops, or waits.
    Failure,
    /// Records can be lost, or their effects repeated.
    DataLoss,
}

/// A problem of a deployment: what was seen, what it can cause, and the setting that fixes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the problem.
    pub kind: FindingKind,
    /// How severe the problem is.
    pub severity: Severity,
    /// What has the problem, such as ``topic `payments` ``. Contains no credentials.
    pub subject: String,
    /// What was seen.
    pub observed: Cow<'static, str>,
    /// What could be lost, or what fails.
    pub risk: Cow<'static, str>,
    /// How to fix the problem.
    pub remedy: Cow<'static, str>,
}

/// The problem that a [`Finding`] is about. Its name, such as `replication-factor`, is in the report, and
/// parses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// A setting is invalid, so that the consumer or the layer does not start.
    InvalidSetting,
    /// No broker answers.
    BrokersUnreachable,
    /// The brokers refuse the user, the password or the mechanism.
    KafkaAuthentication,
    /// The TLS handshake with the brokers fails.
    KafkaTls,
    /// The user lacks a permission in Kafka.
    KafkaPermission,
    /// A topic does not exist.
    TopicMissing,
    /// A partition has no leader.
    NoLeader,
    /// A partition has fewer replicas in sync than it has replicas.
    UnderReplicated,
    /// A partition has a single replica.
    ReplicationFactor,
    /// A write is acknowledged when only one replica has it.
    MinInsyncReplicas,
    /// A replica that lacks acknowledged records can become the leader.
    UncleanLeaderElection,
    /// Records are kept for longer than their entries.
    Retention,
    /// A dead-letter or retry topic is compacted.
    Compacted,
    /// A dead-letter or retry topic deletes records too early.
    ShortRetention,
    /// A dead-letter or retry topic refuses records that its source accepts.
    MessageSize,
    /// The last retry topic's delay is shorter than the longest backoff.
    RetryDelay,
    /// The brokers soon delete the offsets of a group without members.
    OffsetsRetention,
    /// A group without a committed offset does not start at the first record.
    AutoOffsetReset,
    /// The group has members of another protocol or with another assignor.
    GroupProtocol,
    /// The brokers do not know the group, so its name may be wrong.
    GroupUnknown,
    /// A committed offset is outside of its partition.
    OffsetOutOfRange,
    /// A partition has unprocessed records and no consumer, or one without progress.
    NoProgress,
    /// The store does not answer.
    StoreUnreachable,
    /// The store refuses the user or the password.
    StoreAuthentication,
    /// The TLS handshake with the store fails.
    StoreTls,
    /// The store's user lacks a permission.
    StorePermission,
    /// The store's server is too old.
    StoreVersion,
    /// Redis evicts keys when its memory is full.
    RedisEviction,
    /// The memory of Redis is almost full.
    RedisMemory,
    /// Redis is a replica, which accepts no writes.
    RedisReplica,
    /// Redis is a node of a cluster, but is not configured as one.
    RedisCluster,
    /// Redis has no append-only file.
    RedisPersistence,
    /// Redis does not sync its append-only file with every write.
    RedisFsync,
    /// Redis has no replica, or fewer than the store waits for.
    RedisReplicas,
    /// Redis acknowledges writes that no replica receives.
    RedisMinReplicas,
    /// The namespace has another number of buckets.
    RedisBuckets,
    /// The database has no schema, or one of another version.
    PostgresSchema,
    /// Postgres acknowledges commits that are not on its disk.
    PostgresDurability,
    /// Postgres acknowledges commits that no standby has.
    PostgresStandby,
    /// Postgres ends the sessions or statements of handlers.
    PostgresTimeout,
    /// Expired entries are not deleted, or their space is not reused.
    PostgresSweeping,
    /// The namespace has no entries, so its name may be wrong.
    NamespaceEmpty,
    /// The clocks of the store and of this machine differ.
    Clock,
    /// The lock of a crashed consumer outlives its membership of the group.
    LockOutlivesSession,
    /// A handler can take longer than its lock is held.
    MaxHold,
    /// A handler can take longer than a shutdown or a rebalance waits for it.
    DrainTimeout,
    /// A shutdown can take longer than the grace period.
    GracePeriod,
    /// Records are kept for longer than their attempts count.
    AttemptRetention,
    /// Records are kept for longer than it is known that they were given up.
    FailedRetention,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for FindingKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::deserialize(name.into_deserializer())
            .map_err(|_: value::Error| ConfigError::new(format!("there is no finding `{name}`")))
    }
}
