//! The doctor finds each planted fault by its name, and nothing in sound deployments.

#![expect(clippy::unwrap_used, reason = "test helpers")]

mod faults;
mod servers;

use std::time::Duration;

use campanile_admin::StoreConfig;
use campanile_admin::doctor::{Deployment, Finding, FindingKind, Severity, examine};
use campanile_core::{
    Command, FencingToken, IdempotencyKey, Operation, Owner, Retention, StoreKey,
};
use campanile_idempotency::{IdempotencyConfig, Store};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::RedisSentinel;
use futures_util::stream::{self, StreamExt as _};
use rdkafka::producer::Producer;
use tokio::sync::OnceCell;

use crate::faults::{Fault, commit, open_transaction};
use crate::servers::{
    CLUSTER, REDIS, TIMEOUT, consumer, layer, migrated_database, millis, on_store, pg_config,
    redis_config, safe_store, sound, with,
};

/// Creates the topics of a sound deployment once, with records that are not processed yet.
async fn create_sound_topics() {
    static CREATED: OnceCell<()> = OnceCell::const_new();
    let create = async || {
        CLUSTER
            .create_topics(&[
                ("payments", &[]),
                ("payments.retry", &[]),
                ("payments.dead", &[("retention.ms", millis("14 d"))]),
            ])
            .await;
    };
    CREATED.get_or_init(create).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_deployments_have_no_findings() {
    create_sound_topics().await;
    let sentinel = tokio::task::spawn_blocking(|| {
        RedisSentinel::builder()
            // A busy machine must not look like a failed primary.
            .down_after(TIMEOUT)
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .config("min-replicas-to-write", "1")
            .start()
            .unwrap()
    });
    let sentinel = sentinel.await.unwrap();
    let behind_sentinels =
        RedisConfig::sentinel(sentinel.name(), sentinel.urls()).with_connect_timeout(TIMEOUT);
    let database = migrated_database().await;
    for (name, deployment) in [
        ("Redis", sound()),
        ("Redis behind sentinels", on_store(StoreConfig::Redis(behind_sentinels))),
        ("Postgres", on_store(StoreConfig::Postgres(pg_config(database))).with_inbox()),
    ] {
        let report = examine(&before_first_start(deployment)).await;
        assert_eq!(report.findings, [], "{name}");
        assert!(report.is_sound());
    }
}

/// Nothing has run: the group is not known, and the namespace is empty.
fn before_first_start(deployment: Deployment) -> Deployment {
    deployment.accept(FindingKind::GroupUnknown).accept(FindingKind::NamespaceEmpty)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_group_and_empty_namespace_are_named() {
    create_sound_topics().await;
    let kinds = async || {
        let layer = IdempotencyConfig::new("mistyped");
        let deployment = with(consumer("mistyped"), layer, safe_store());
        let report = examine(&deployment).await;
        let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
        (kinds, report.to_string())
    };
    let (found, report) = kinds().await;
    assert_eq!(found, [FindingKind::GroupUnknown, FindingKind::NamespaceEmpty], "{report}");

    commit("mistyped", "payments", 0);
    let config = redis_config(REDIS.primary.url()).with_command_timeout(TIMEOUT);
    let store = RedisStore::connect(config).await.unwrap();
    let key = IdempotencyKey::new("p-1").unwrap();
    let operation = Operation::Acquire {
        owner: Owner::new(7).unwrap(),
        ttl: TIMEOUT,
        max_attempts: 5,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: None,
    };
    let key = StoreKey::new("mistyped".try_into().unwrap(), &key);
    store.apply(Command { key, operation, retention: Retention::default() }).await.unwrap();
    let (found, report) = kinds().await;
    assert_eq!(found, [], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_planted_fault_is_found_by_its_name() {
    create_sound_topics().await;
    let faults = faults::plant().await;
    assert!(faults.len() >= 20);
    let mut examined = stream::iter(&faults)
        .map(async |fault| (fault, examine(&before_first_start(fault.deployment.clone())).await))
        .buffered(8);
    let mut wrong = Vec::new();
    while let Some((Fault { what, kind, severity, .. }, report)) = examined.next().await {
        let found: Vec<_> = report.findings.iter().map(|it| (it.kind, it.severity)).collect();
        if found != [(*kind, *severity)] {
            wrong.push(format!("{what}: {kind} was planted, but the report is\n{report}"));
        }
        assert_eq!(report.is_sound(), *severity == Severity::Advice, "{what}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_transaction_is_no_unprocessed_record() {
    create_sound_topics().await;
    CLUSTER.create_topics(&[("ends-with-marker", &[][..])]).await;
    open_transaction("ends-with-marker").commit_transaction(TIMEOUT).unwrap();
    commit("all-processed", "ends-with-marker", 1);
    let deployment = Deployment::new(consumer("all-processed"), layer(), safe_store())
        .subscribe(["ends-with-marker"])
        .with_observation(Duration::from_millis(1));
    let report = examine(&before_first_start(deployment)).await;
    assert_eq!(report.findings, [], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_finding_is_reported_and_sound() {
    create_sound_topics().await;
    let deployment = |grace| before_first_start(sound()).with_grace_period(grace);
    let short = Duration::from_secs(5);
    assert!(!examine(&deployment(short)).await.is_sound());
    let report = examine(&deployment(short).accept(FindingKind::GracePeriod)).await;
    assert!(report.is_sound());
    let is_accepted = |finding: &Finding| finding.kind == FindingKind::GracePeriod;
    assert!(report.accepted.iter().any(is_accepted), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_shows_what_is_lost_and_no_secrets() {
    let deployment = Deployment::from_toml(
        r#"
        topics = ["payments"]
        [kafka]
        "bootstrap.servers" = "127.0.0.1:1"
        "group.id" = "g"
        "security.protocol" = "sasl_plaintext"
        "sasl.mechanisms" = "PLAIN"
        "sasl.username" = "app"
        "sasl.password" = "s3cret"
        [layer]
        namespace = "payments"
        [redis]
        url = "redis://app:s3cret@127.0.0.1:1"
        connect_timeout = "10ms"
        "#,
    )
    .unwrap();
    let report = examine(&deployment).await;
    let json = serde_json::to_value(&report).unwrap();
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::BrokersUnreachable, FindingKind::StoreUnreachable]);
    assert_eq!(json["findings"][0]["kind"], "brokers-unreachable");
    assert_eq!(json["findings"][0]["severity"], "failure");
    let shown = format!("{report}\n{json}\n{deployment:?}");
    assert!(shown.contains("FAILURE brokers-unreachable: the brokers at 127.0.0.1:1"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn kind_is_shown_and_parsed_by_its_name() {
    let kind: FindingKind = "replication-factor".parse().unwrap();
    assert_eq!(kind, FindingKind::ReplicationFactor);
    assert_eq!(kind.to_string(), "replication-factor");
    let error = "evicted".parse::<FindingKind>().unwrap_err();
    assert_eq!(error.to_string(), "there is no finding `evicted`");
}

#[test]
fn documented_file_parses() {
    let page = include_str!("../../../../../docs/kubernetes.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    let file = file.replace("${KAFKA_PASSWORD}", "k").replace("${REDIS_PASSWORD}", "r");
    let deployment = Deployment::from_toml(&file);
    assert!(deployment.is_ok(), "{deployment:?}");
}
