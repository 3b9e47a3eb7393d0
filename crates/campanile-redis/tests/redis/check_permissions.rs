//! Missing permissions are found at the start and not by the first record.

use campanile_core::Namespace;
use campanile_redis::{ConnectError, Finding, FindingKind, RedisConfig, RedisStore, Safety};
use campanile_test::RedisServer;

use crate::support::{acquired, key, patient};

const ALL_KEYS: &str = "~campanile:* ~{*";
const ALL_COMMANDS: &str = "+eval +evalsha +get +mget +set +time +info +config|get";

/// Starts a server with a user `app` that has these permissions.
fn server(rules: &str) -> (RedisServer, RedisConfig) {
    let rules = format!("app on >pw -@all {rules}");
    let server = RedisServer::builder().config("user", &rules).start().unwrap();
    let config = patient(format!("redis://app:pw@{}", server.addr()));
    (server, config)
}

fn tests() -> [Namespace; 1] {
    [Namespace::try_from(crate::support::NAMESPACE).unwrap()]
}

/// Connects, and returns the finding for which the server is refused.
async fn refused(config: &RedisConfig) -> Finding {
    match RedisStore::connect(config.clone()).await {
        Err(ConnectError::Unsafe { findings, .. }) if findings.len() == 1 => findings[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_command_that_is_needed_and_denied_is_named() {
    for command in ["eval", "evalsha", "get", "mget", "set", "time"] {
        let (_server, config) = server(&format!("{ALL_KEYS} {ALL_COMMANDS} -{command}"));
        let finding = refused(&config).await;
        assert_eq!(finding.kind(), FindingKind::Permission);
        let expected = format!("the user may not send {}", command.to_uppercase());
        assert_eq!(finding.seen(), expected);
    }
}

#[tokio::test]
async fn keys_that_are_needed_and_denied_are_named() {
    for keys in ["", "~campanile:*", "~{*", "~{other:* ~campanile:{other}", "%R~{* %R~campanile:*"]
    {
        let (_server, config) = server(&format!("{ALL_COMMANDS} {keys}"));
        let finding = refused(&config.with_namespaces(tests())).await;
        assert_eq!(finding.kind(), FindingKind::Permission);
        assert!(finding.seen().contains("campanile:{tests} and {tests:"), "{keys}: {finding}");
    }
}

#[tokio::test]
async fn a_user_of_one_namespace_is_enough_for_a_store_that_names_it() {
    let (_server, config) = server(&format!("{ALL_COMMANDS} ~{{tests:* ~campanile:{{tests}}"));
    let of_user = |store: &RedisStore| -> Vec<_> {
        let kinds = store.findings().iter().map(Finding::kind);
        kinds.filter(|kind| matches!(kind, FindingKind::Permission | FindingKind::Keys)).collect()
    };
    let store = RedisStore::connect(config.clone()).await.unwrap();
    assert_eq!(of_user(&store), [FindingKind::Keys]);
    let store = RedisStore::connect(config.with_namespaces(tests())).await.unwrap();
    assert_eq!(of_user(&store), []);
    acquired(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn a_server_that_cannot_be_looked_at_is_not_refused_for_that() {
    let commands = ALL_COMMANDS.replace(" +info +config|get", "");
    let (_server, config) = server(&format!("{ALL_KEYS} {commands}"));
    let store = RedisStore::connect(config).await.unwrap();
    let [finding] = store.findings() else { panic!("{:?}", store.findings()) };
    assert_eq!(finding.kind(), FindingKind::Unseen);
    assert!(finding.seen().contains("INFO and CONFIG GET"), "{finding}");
    acquired(&store, &key("key"), 1).await;
}

#[tokio::test]
async fn a_server_without_config_is_not_refused_for_that() {
    let server = RedisServer::builder().config("rename-command", "CONFIG \"\"").start().unwrap();
    let store = RedisStore::connect(patient(server.url())).await.unwrap();
    let unseen = store.findings().iter().find(|finding| finding.kind() == FindingKind::Unseen);
    assert!(unseen.unwrap().seen().ends_with("CONFIG GET"), "{unseen:?}");
}

#[tokio::test]
async fn a_user_who_may_do_too_little_is_accepted_by_choice() {
    let (_server, config) = server(&format!("{ALL_KEYS} {ALL_COMMANDS} -mget"));
    let store = RedisStore::connect(config.with_safety(Safety::Warn)).await.unwrap();
    assert!(store.findings().iter().any(|finding| finding.kind() == FindingKind::Permission));
    // Permitted commands work: an acquire does not need MGET.
    acquired(&store, &key("key"), 1).await;
}
