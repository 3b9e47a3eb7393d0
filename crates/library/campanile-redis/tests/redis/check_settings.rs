//! A misconfigured server is found at the start, with what could be lost and how to fix it.

use campanile_core::Namespace;
use campanile_redis::{ConnectError, Finding, FindingKind, RedisStore, Safety, Severity};
use campanile_test::RedisServer;

use crate::support::{acquire_lock, key, long_timeout, replica_of};

/// Inspects a server, accepting all findings.
async fn accepted_findings(server: &RedisServer) -> Vec<Finding> {
    let config = long_timeout(server.url()).with_safety(Safety::Warn);
    RedisStore::connect(config).await.unwrap().findings().to_vec()
}

/// Finds the only finding of this kind, and asserts that it is complete.
async fn finding_of(server: &RedisServer, kind: FindingKind) -> Finding {
    let found = accepted_findings(server).await;
    let of_kind: Vec<_> = found.iter().filter(|finding| finding.kind() == kind).collect();
    let [finding] = &*of_kind else { panic!("expected {kind:?} once: {found:?}") };
    assert_eq!(finding.address(), server.addr().to_string());
    for part in [finding.observed(), finding.risk(), finding.remedy()] {
        assert!(finding.to_string().contains(part) && !part.is_empty(), "{finding}");
    }
    (*finding).clone()
}

/// Connects to a server that is refused, and lists the findings.
async fn refusal_kinds(server: &RedisServer) -> Vec<FindingKind> {
    match RedisStore::connect(long_timeout(server.url())).await {
        Err(ConnectError::Unsafe { findings, .. }) => findings.iter().map(Finding::kind).collect(),
        other => panic!("{other:?}"),
    }
}

fn kinds(found: &[Finding]) -> Vec<FindingKind> {
    found.iter().map(Finding::kind).collect()
}

fn durable_server() -> campanile_test::RedisServerBuilder {
    RedisServer::builder().append_only(true).config("appendfsync", "always")
}

#[tokio::test]
async fn well_configured_server_has_no_finding() {
    let server = durable_server().config("min-replicas-to-write", "1").start().unwrap();
    let _replica = replica_of(&server);
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    assert!(store.findings().is_empty(), "{:?}", store.findings());
    acquire_lock(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn eviction_finding_needs_policy_and_memory_limit() {
    let server = RedisServer::builder().config("maxmemory", "100mb").start().unwrap();
    assert!(!kinds(&accepted_findings(&server).await).contains(&FindingKind::Eviction));
    server.cli(&["CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "allkeys-lru"]).unwrap();
    assert!(!kinds(&accepted_findings(&server).await).contains(&FindingKind::Eviction));

    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    let finding = finding_of(&server, FindingKind::Eviction).await;
    assert_eq!(finding.severity(), Severity::Unsafe);
    assert!(finding.remedy().contains("noeviction"), "{finding}");
    assert_eq!(refusal_kinds(&server).await, [FindingKind::Eviction]);
}

#[tokio::test]
async fn nearly_full_memory_is_a_finding() {
    let server = RedisServer::builder().config("maxmemory", "100mb").start().unwrap();
    assert!(!kinds(&accepted_findings(&server).await).contains(&FindingKind::Memory));
    // less than an idle server uses
    server.cli(&["CONFIG", "SET", "maxmemory", "100kb"]).unwrap();
    let finding = finding_of(&server, FindingKind::Memory).await;
    assert!(finding.observed().contains("of 102400 bytes"), "{finding}");
}

#[tokio::test]
async fn other_bucket_count_of_configured_namespace_is_refused() {
    let server = RedisServer::start().unwrap();
    let namespace = Namespace::try_from("tests").unwrap();
    let config = |buckets| {
        long_timeout(server.url()).with_namespaces([namespace.clone()]).with_buckets(buckets)
    };
    let store = RedisStore::connect(config(16)).await.unwrap();
    acquire_lock(&store, &key("key"), 1).await;
    RedisStore::connect(config(16)).await.unwrap();
    let Err(ConnectError::Unsafe { findings, .. }) = RedisStore::connect(config(4)).await else {
        panic!("the store connects with another number of buckets");
    };
    let [finding] = &*findings else { panic!("{findings:?}") };
    assert_eq!(finding.kind(), FindingKind::Buckets);
    assert!(finding.observed().contains("tests has 16 buckets"), "{finding}");
}

#[tokio::test]
async fn replica_is_refused_with_its_primarys_address() {
    let primary = RedisServer::start().unwrap();
    let replica = replica_of(&primary);
    let finding = finding_of(&replica, FindingKind::Replica).await;
    assert!(finding.observed().contains(&primary.addr().to_string()), "{finding}");
    assert_eq!(refusal_kinds(&replica).await, [FindingKind::Replica]);
}

#[tokio::test]
async fn missing_persistence_is_a_finding() {
    let server = RedisServer::start().unwrap();
    let finding = finding_of(&server, FindingKind::Persistence).await;
    assert_eq!(finding.severity(), Severity::DataLoss);
    assert!(finding.observed().contains("nothing is kept on disk"), "{finding}");
    assert!(finding.remedy().contains("appendonly yes"), "{finding}");

    server.cli(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    let finding = finding_of(&server, FindingKind::Persistence).await;
    assert!(finding.observed().contains("save 3600 1"), "{finding}");
}

#[tokio::test]
async fn delayed_fsync_is_a_finding() {
    let server = RedisServer::builder().append_only(true).start().unwrap();
    let finding = finding_of(&server, FindingKind::Fsync).await;
    assert_eq!(
        (finding.severity(), finding.observed()),
        (Severity::Notice, "appendfsync everysec")
    );

    server.cli(&["CONFIG", "SET", "no-appendfsync-on-rewrite", "yes"]).unwrap();
    for fsync in ["everysec", "always"] {
        server.cli(&["CONFIG", "SET", "appendfsync", fsync]).unwrap();
        let finding = finding_of(&server, FindingKind::Fsync).await;
        assert_eq!(finding.severity(), Severity::DataLoss);
        assert_eq!(finding.observed(), "no-appendfsync-on-rewrite yes");
        assert_eq!(finding.remedy(), "set no-appendfsync-on-rewrite no");
    }
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]).unwrap();
    let finding = finding_of(&server, FindingKind::Fsync).await;
    assert_eq!((finding.severity(), finding.observed()), (Severity::DataLoss, "appendfsync no"));
    assert_eq!(finding.remedy(), "set appendfsync always");
}

#[tokio::test]
async fn missing_replica_or_min_replicas_is_a_finding() {
    let server = durable_server().start().unwrap();
    assert_eq!(kinds(&accepted_findings(&server).await), [FindingKind::Replicas]);

    let _replica = replica_of(&server);
    let finding = finding_of(&server, FindingKind::MinReplicas).await;
    assert_eq!(finding.severity(), Severity::DataLoss);
    assert!(finding.remedy().contains("min-replicas-to-write 1"), "{finding}");
}

#[tokio::test]
async fn safety_off_skips_the_inspection() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let config = long_timeout(server.url()).with_safety(Safety::Off);
    let store = RedisStore::connect(config).await.unwrap();
    assert!(store.findings().is_empty());
    let calls = server.cli(&["INFO", "commandstats"]).unwrap();
    assert!(!calls.contains("cmdstat_info") && !calls.contains("cmdstat_config"), "{calls}");
    acquire_lock(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn findings_are_sorted_and_refusal_lists_all_causes() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "volatile-lru")
        .config("cluster-enabled", "yes")
        .start()
        .unwrap();
    let severities: Vec<_> =
        accepted_findings(&server).await.iter().map(Finding::severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "{severities:?}");
    assert!(severities.contains(&Severity::Unsafe) && severities.contains(&Severity::DataLoss));

    let error = RedisStore::connect(long_timeout(server.url())).await.unwrap_err();
    let text = error.to_string();
    for part in [&server.addr().to_string(), "volatile-lru", "noeviction", "cluster-enabled yes"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("appendonly"), "lists other findings, too: {text}");
}
