//! The servers of a Redis store: what the store itself finds when it connects.

use campanile_core::Namespace;
use campanile_redis::{ConnectError, RedisConfig, RedisStore, Safety};

use super::Report;
use super::finding::{FindingKind, Severity};
use super::store::check_namespace;
use crate::error::chain;

pub(super) async fn examine(config: &RedisConfig, namespace: Namespace, report: &mut Report) {
    // All findings are wanted, including those for which the store would refuse the server.
    let config = config.clone().with_safety(Safety::Warn).with_namespaces([namespace.clone()]);
    match RedisStore::connect(config).await {
        Ok(store) => {
            store.findings().iter().for_each(|finding| add(finding, report));
            check_namespace(&store, &namespace, report).await;
        }
        Err(error) => add_error(&error, report),
    }
}

fn add(finding: &campanile_redis::Finding, report: &mut Report) {
    use campanile_redis::FindingKind as Kind;
    let kind = match finding.kind() {
        Kind::Eviction => FindingKind::RedisEviction,
        Kind::Memory => FindingKind::RedisMemory,
        Kind::Replica => FindingKind::RedisReplica,
        Kind::Version => FindingKind::StoreVersion,
        Kind::Cluster => FindingKind::RedisCluster,
        Kind::Permission | Kind::KeyAccess => FindingKind::StorePermission,
        Kind::Persistence => FindingKind::RedisPersistence,
        Kind::Fsync => FindingKind::RedisFsync,
        Kind::Replicas => FindingKind::RedisReplicas,
        Kind::MinReplicas => FindingKind::RedisMinReplicas,
        Kind::Buckets => FindingKind::RedisBuckets,
        Kind::Clock => FindingKind::Clock,
        _ => {
            let what = format!("Redis at {}", finding.address());
            return report.add_unchecked(what, finding.to_string());
        }
    };
    let severity = match (finding.kind(), finding.severity()) {
        (Kind::Eviction, _) | (_, campanile_redis::Severity::DataLoss) => Severity::DataLoss,
        (Kind::Memory, _) | (_, campanile_redis::Severity::Unsafe) => Severity::Failure,
        _ => Severity::Advice,
    };
    report.add(
        (kind, severity),
        format!("Redis at {}", finding.address()),
        finding.observed().to_owned(),
        finding.risk().to_owned(),
        finding.remedy().to_owned(),
    );
}

fn add_error(error: &ConnectError, report: &mut Report) {
    let (kind, remedy) = match error {
        ConnectError::Config(_) | ConnectError::Url { .. } => {
            (FindingKind::InvalidSetting, "correct the setting")
        }
        ConnectError::Denied { .. } => {
            (FindingKind::StoreAuthentication, "correct the user and the password")
        }
        ConnectError::Tls { .. } => (
            FindingKind::StoreTls,
            "correct the certificates, or the name in the URL (`RedisConfig::with_ca`)",
        ),
        _ => (FindingKind::StoreUnreachable, "start the server, or correct its address"),
    };
    report.add(
        (kind, Severity::Failure),
        "Redis",
        chain(error),
        "the store does not connect, so the consumer does not start",
        remedy,
    );
}
