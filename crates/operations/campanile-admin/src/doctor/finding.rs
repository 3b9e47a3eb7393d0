//! What was found, and how severe it is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use campanile_core::ConfigError;
use serde::{Serialize, Serializer};

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

/// Defines the kinds and their names in one place.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)+) => {
        /// The problem that a [`Finding`] is about. Its name, such as `replication-factor`, is in the
        /// report, and parses.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum FindingKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Returns the name, in lower case and with hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// A setting is invalid, so that the consumer or the layer does not start.
    InvalidSetting = "invalid-setting",
    /// No broker answers.
    BrokersUnreachable = "brokers-unreachable",
    /// The brokers refuse the user, the password or the mechanism.
    KafkaAuthentication = "kafka-authentication",
    /// The TLS handshake with the brokers fails.
    KafkaTls = "kafka-tls",
    /// The user lacks a permission in Kafka.
    KafkaPermission = "kafka-permission",
    /// A topic does not exist.
    TopicMissing = "topic-missing",
    /// A partition has no leader.
    NoLeader = "no-leader",
    /// A partition has fewer replicas in sync than it has replicas.
    UnderReplicated = "under-replicated",
    /// A partition has a single replica.
    ReplicationFactor = "replication-factor",
    /// A write is acknowledged when only one replica has it.
    MinInsyncReplicas = "min-insync-replicas",
    /// A replica that lacks acknowledged records can become the leader.
    UncleanLeaderElection = "unclean-leader-election",
    /// Records are kept for longer than their entries.
    Retention = "retention",
    /// A dead-letter or retry topic is compacted.
    Compacted = "compacted",
    /// A dead-letter or retry topic deletes records too early.
    ShortRetention = "short-retention",
    /// A dead-letter or retry topic refuses records that its source accepts.
    MessageSize = "message-size",
    /// The last retry topic's delay is shorter than the longest backoff.
    RetryDelay = "retry-delay",
    /// The brokers soon delete the offsets of a group without members.
    OffsetsRetention = "offsets-retention",
    /// A group without a committed offset does not start at the first record.
    AutoOffsetReset = "auto-offset-reset",
    /// The group has members of another protocol or with another assignor.
    GroupProtocol = "group-protocol",
    /// The brokers do not know the group, so its name may be wrong.
    GroupUnknown = "group-unknown",
    /// A committed offset is outside of its partition.
    OffsetOutOfRange = "offset-out-of-range",
    /// A partition has unprocessed records and no consumer, or one without progress.
    NoProgress = "no-progress",
    /// The store does not answer.
    StoreUnreachable = "store-unreachable",
    /// The store refuses the user or the password.
    StoreAuthentication = "store-authentication",
    /// The TLS handshake with the store fails.
    StoreTls = "store-tls",
    /// The store's user lacks a permission.
    StorePermission = "store-permission",
    /// The store's server is too old.
    StoreVersion = "store-version",
    /// Redis evicts keys when its memory is full.
    RedisEviction = "redis-eviction",
    /// The memory of Redis is almost full.
    RedisMemory = "redis-memory",
    /// Redis is a replica, which accepts no writes.
    RedisReplica = "redis-replica",
    /// Redis is a node of a cluster, but is not configured as one.
    RedisCluster = "redis-cluster",
    /// Redis has no append-only file.
    RedisPersistence = "redis-persistence",
    /// Redis does not sync its append-only file with every write.
    RedisFsync = "redis-fsync",
    /// Redis has no replica, or fewer than the store waits for.
    RedisReplicas = "redis-replicas",
    /// Redis acknowledges writes that no replica receives.
    RedisMinReplicas = "redis-min-replicas",
    /// The namespace has another number of buckets.
    RedisBuckets = "redis-buckets",
    /// The database has no schema, or one of another version.
    PostgresSchema = "postgres-schema",
    /// Postgres acknowledges commits that are not on its disk.
    PostgresDurability = "postgres-durability",
    /// Postgres acknowledges commits that no standby has.
    PostgresStandby = "postgres-standby",
    /// Postgres ends the sessions or statements of handlers.
    PostgresTimeout = "postgres-timeout",
    /// Expired entries are not deleted, or their space is not reused.
    PostgresSweeping = "postgres-sweeping",
    /// The namespace has no entries, so its name may be wrong.
    NamespaceEmpty = "namespace-empty",
    /// The clocks of the store and of this machine differ.
    Clock = "clock",
    /// The lock of a crashed consumer outlives its membership of the group.
    LockOutlivesSession = "lock-outlives-session",
    /// A handler can take longer than its lock is held.
    MaxHold = "max-hold",
    /// A handler can take longer than a shutdown or a rebalance waits for it.
    DrainTimeout = "drain-timeout",
    /// A shutdown can take longer than the grace period.
    GracePeriod = "grace-period",
    /// Records are kept for longer than their attempts count.
    AttemptRetention = "attempt-retention",
    /// Records are kept for longer than it is known that they were given up.
    FailedRetention = "failed-retention",
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FindingKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let found = Self::ALL.iter().find(|kind| kind.name() == name);
        found.copied().ok_or_else(|| ConfigError::new(format!("there is no finding `{name}`")))
    }
}

impl Serialize for FindingKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
