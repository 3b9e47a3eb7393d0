//! A misconfigured server is found at the start, with what could be lost and how to fix it.

use campanile_redis::{ConnectError, Finding, FindingKind, RedisStore, Safety, Severity};
use campanile_test::RedisServer;

use crate::support::{acquired, key, patient, replica_of};

/// Inspects a server, accepting all findings.
async fn found(server: &RedisServer) -> Vec<Finding> {
    let config = patient(server.url()).with_safety(Safety::Warn);
    RedisStore::connect(config).await.unwrap().findings().to_vec()
}

/// Finds the only finding of this kind, and asserts that it is complete.
async fn one(server: &RedisServer, kind: FindingKind) -> Finding {
    let found = found(server).await;
    let of_kind: Vec<_> = found.iter().filter(|finding| finding.kind() == kind).collect();
    let [finding] = &*of_kind else { panic!("expected {kind:?} once: {found:?}") };
    assert_eq!(finding.address(), server.addr().to_string());
    for part in [finding.seen(), finding.risk(), finding.remedy()] {
        assert!(finding.to_string().contains(part) && !part.is_empty(), "{finding}");
    }
    (*finding).clone()
}

/// Connects, and returns the findings for which the server is refused.
async fn refused(server: &RedisServer) -> Vec<FindingKind> {
    match RedisStore::connect(patient(server.url())).await {
        Err(ConnectError::Unsafe { findings, .. }) => findings.iter().map(Finding::kind).collect(),
        other => panic!("{other:?}"),
    }
}

fn kinds(found: &[Finding]) -> Vec<FindingKind> {
    found.iter().map(Finding::kind).collect()
}

fn on_disk() -> campanile_test::RedisServerBuilder {
    RedisServer::builder().append_only(true).config("appendfsync", "always")
}

#[tokio::test]
async fn a_server_that_is_set_up_well_has_no_finding() {
    let server = on_disk().config("min-replicas-to-write", "1").start().unwrap();
    let _replica = replica_of(&server);
    let store = RedisStore::connect(patient(server.url())).await.unwrap();
    assert!(store.findings().is_empty(), "{:?}", store.findings());
    acquired(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn a_limit_of_memory_without_eviction_is_no_finding() {
    let server = RedisServer::builder().config("maxmemory", "100mb").start().unwrap();
    assert!(!kinds(&found(&server).await).contains(&FindingKind::Eviction));
    server.cli(&["CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "allkeys-lru"]).unwrap();
    assert!(!kinds(&found(&server).await).contains(&FindingKind::Eviction));

    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    let finding = one(&server, FindingKind::Eviction).await;
    assert_eq!(finding.severity(), Severity::Breaks);
    assert!(finding.remedy().contains("noeviction"), "{finding}");
    assert_eq!(refused(&server).await, [FindingKind::Eviction]);
}

#[tokio::test]
async fn a_replica_is_refused_and_its_primary_told() {
    let primary = RedisServer::start().unwrap();
    let replica = replica_of(&primary);
    let finding = one(&replica, FindingKind::Replica).await;
    assert!(finding.seen().contains(&primary.addr().to_string()), "{finding}");
    assert_eq!(refused(&replica).await, [FindingKind::Replica]);
}

#[tokio::test]
async fn what_is_not_kept_on_disk_is_told() {
    let server = RedisServer::start().unwrap();
    let finding = one(&server, FindingKind::Persistence).await;
    assert_eq!(finding.severity(), Severity::Loses);
    assert!(finding.seen().contains("nothing is kept on disk"), "{finding}");
    assert!(finding.remedy().contains("appendonly yes"), "{finding}");

    server.cli(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    let finding = one(&server, FindingKind::Persistence).await;
    assert!(finding.seen().contains("save 3600 1"), "{finding}");
}

#[tokio::test]
async fn what_reaches_the_disk_late_is_told() {
    let server = RedisServer::builder().append_only(true).start().unwrap();
    let finding = one(&server, FindingKind::Fsync).await;
    assert_eq!((finding.severity(), finding.seen()), (Severity::Notice, "appendfsync everysec"));

    server.cli(&["CONFIG", "SET", "no-appendfsync-on-rewrite", "yes"]).unwrap();
    for fsync in ["everysec", "always"] {
        server.cli(&["CONFIG", "SET", "appendfsync", fsync]).unwrap();
        let finding = one(&server, FindingKind::Fsync).await;
        assert_eq!(finding.severity(), Severity::Loses);
        assert_eq!(finding.seen(), "no-appendfsync-on-rewrite yes");
        assert_eq!(finding.remedy(), "set no-appendfsync-on-rewrite no");
    }
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]).unwrap();
    let finding = one(&server, FindingKind::Fsync).await;
    assert_eq!((finding.severity(), finding.seen()), (Severity::Loses, "appendfsync no"));
    assert_eq!(finding.remedy(), "set appendfsync always");
}

#[tokio::test]
async fn a_server_without_a_replica_that_must_keep_up_is_told() {
    let server = on_disk().start().unwrap();
    assert_eq!(kinds(&found(&server).await), [FindingKind::Replicas]);

    let _replica = replica_of(&server);
    let finding = one(&server, FindingKind::MinReplicas).await;
    assert_eq!(finding.severity(), Severity::Loses);
    assert!(finding.remedy().contains("min-replicas-to-write 1"), "{finding}");
}

#[tokio::test]
async fn a_server_that_is_not_looked_at_has_no_finding() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let config = patient(server.url()).with_safety(Safety::Off);
    let store = RedisStore::connect(config).await.unwrap();
    assert!(store.findings().is_empty());
    let calls = server.cli(&["INFO", "commandstats"]).unwrap();
    assert!(!calls.contains("cmdstat_info") && !calls.contains("cmdstat_config"), "{calls}");
    acquired(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn the_worst_comes_first_and_what_is_refused_is_told_whole() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "volatile-lru")
        .config("cluster-enabled", "yes")
        .start()
        .unwrap();
    let severities: Vec<_> = found(&server).await.iter().map(Finding::severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "{severities:?}");
    assert!(severities.contains(&Severity::Breaks) && severities.contains(&Severity::Loses));

    let error = RedisStore::connect(patient(server.url())).await.unwrap_err();
    let text = error.to_string();
    for part in [&server.addr().to_string(), "volatile-lru", "noeviction", "cluster-enabled yes"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("appendonly"), "lists other findings, too: {text}");
}
