//! Missing permissions are found at the start and not by the first record.

use campanile_core::Namespace;
use campanile_redis::{ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Safety};
use campanile_test::{RedisCluster, RedisServer};

use crate::cluster;
use crate::support::{acquire_lock, key, long_timeout};

const ALL_KEYS: &str = "~campanile:* ~{*";
const ALL_COMMANDS: &str = "+eval +evalsha +get +mget +set +time +info +config|get";

/// Starts a server with a user `app` that has these permissions.
fn server(rules: &str) -> (RedisServer, RedisConfig) {
    let rules = format!("app on >pw -@all {rules}");
    let server = RedisServer::builder().config("user", &rules).start().unwrap();
    let config = long_timeout(format!("redis://app:pw@{}", server.addr()));
    (server, config)
}

fn test_namespaces() -> [Namespace; 1] {
    [Namespace::try_from(crate::support::NAMESPACE).unwrap()]
}

/// Connects to a server that is refused for exactly one finding.
async fn refusal(config: &RedisConfig) -> Finding {
    match RedisStore::connect(config.clone()).await {
        Err(ConnectError::Unsafe { findings, .. }) if findings.len() == 1 => findings[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn finding_names_each_denied_command() {
    for command in ["eval", "evalsha", "get", "mget", "set", "time"] {
        let (_server, config) = server(&format!("{ALL_KEYS} {ALL_COMMANDS} -{command}"));
        let finding = refusal(&config).await;
        assert_eq!(finding.kind(), FindingKind::Permission);
        let expected = format!("the user may not send {}", command.to_uppercase());
        assert_eq!(finding.observed(), expected);
    }
}

#[tokio::test]
async fn finding_of_cluster_node_names_denied_asking() {
    let rules = format!("app on >pw -@all {ALL_KEYS} {ALL_COMMANDS} +cluster|slots");
    let cluster = RedisCluster::builder().config("user", &rules).start().unwrap();
    let config = cluster::long_timeout(&cluster).with_credentials("app", "pw");
    let finding = refusal(&config).await;
    assert_eq!(finding.kind(), FindingKind::Permission);
    assert_eq!(finding.observed(), "the user may not send ASKING");
}

#[tokio::test]
async fn finding_names_the_denied_keys() {
    for keys in ["", "~campanile:*", "~{*", "~{other:* ~campanile:{other}", "%R~{* %R~campanile:*"]
    {
        let (_server, config) = server(&format!("{ALL_COMMANDS} {keys}"));
        let finding = refusal(&config.with_namespaces(test_namespaces())).await;
        assert_eq!(finding.kind(), FindingKind::Permission);
        assert!(finding.observed().contains("campanile:{tests} and {tests:"), "{keys}: {finding}");
    }
}

#[tokio::test]
async fn single_namespace_user_suffices_if_configured() {
    let (_server, config) = server(&format!("{ALL_COMMANDS} ~{{tests:* ~campanile:{{tests}}"));
    let user_findings = |store: &RedisStore| -> Vec<_> {
        let kinds = store.findings().iter().map(Finding::kind);
        kinds
            .filter(|kind| matches!(kind, FindingKind::Permission | FindingKind::KeyAccess))
            .collect()
    };
    let store = RedisStore::connect(config.clone()).await.unwrap();
    assert_eq!(user_findings(&store), [FindingKind::KeyAccess]);
    let store = RedisStore::connect(config.with_namespaces(test_namespaces())).await.unwrap();
    assert_eq!(user_findings(&store), []);
    acquire_lock(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn server_without_info_permission_is_accepted() {
    let commands = ALL_COMMANDS.replace(" +info +config|get", "");
    let (_server, config) = server(&format!("{ALL_KEYS} {commands}"));
    let store = RedisStore::connect(config).await.unwrap();
    let [finding] = store.findings() else { panic!("{:?}", store.findings()) };
    assert_eq!(finding.kind(), FindingKind::NotInspected);
    assert!(finding.observed().contains("INFO and CONFIG GET"), "{finding}");
    acquire_lock(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn server_without_config_command_is_accepted() {
    let server = RedisServer::builder().config("rename-command", "CONFIG \"\"").start().unwrap();
    let store = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let unseen =
        store.findings().iter().find(|finding| finding.kind() == FindingKind::NotInspected);
    assert!(unseen.unwrap().observed().ends_with("CONFIG GET"), "{unseen:?}");
}

#[tokio::test]
async fn missing_permission_is_accepted_with_safety_warn() {
    let (_server, config) = server(&format!("{ALL_KEYS} {ALL_COMMANDS} -mget"));
    let store = RedisStore::connect(config.with_safety(Safety::Warn)).await.unwrap();
    assert!(store.findings().iter().any(|finding| finding.kind() == FindingKind::Permission));
    // Permitted commands work: an acquire does not need MGET.
    acquire_lock(&store, &key("key"), 1).await;
}
