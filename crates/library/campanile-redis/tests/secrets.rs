//! Credentials are never shown. A separate test binary, because it captures the log of the process.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "redis/captured_log.rs"]
mod captured_log;

use std::time::Duration;

use campanile_core::{IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};
use campanile_idempotency::Store;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::captured_log::CapturedLog;

const USER: &str = "ab3lard";
const PASSWORD: &str = "h3loise";
const SECRETS: [&str; 4] = [USER, PASSWORD, "f0rgotten", "cr3ak"];

/// Connects if possible, and uses the store.
async fn connect_and_use(log: &CapturedLog, config: RedisConfig) -> Option<RedisStore> {
    let config = config.with_command_timeout(Duration::from_millis(300));
    log.show(&config);
    match RedisStore::connect(config).await {
        Ok(store) => {
            send_commands(log, &store).await;
            Some(store)
        }
        Err(error) => {
            log.error(&error);
            None
        }
    }
}

async fn send_commands(log: &CapturedLog, store: &RedisStore) {
    log.show(store);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let namespace = Namespace::try_from("tests").unwrap();
        let command = campanile_core::Command {
            key: StoreKey::new(namespace, &IdempotencyKey::new(name).unwrap()),
            operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
            retention: Retention::default(),
        };
        if let Err(error) = store.apply(command).await {
            log.error(&error);
        }
    }
}

fn user(url: &str) -> String {
    url.replace("redis://", &format!("redis://{USER}:{PASSWORD}@"))
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_never_appear_in_output() {
    let log = CapturedLog::default();
    log.listen();
    let rules = format!("{USER} on >{PASSWORD} ~* +@all");

    let mut server = RedisServer::builder().config("user", &rules).start().unwrap();
    let url = server.url();
    let store = connect_and_use(&log, RedisConfig::new(user(&url))).await.expect("connected");
    let set = RedisConfig::new(&*url).with_credentials(USER, PASSWORD);
    connect_and_use(&log, set).await.expect("connected");
    let wrong = RedisConfig::new(&*url).with_credentials(USER, "f0rgotten");
    assert!(connect_and_use(&log, wrong).await.is_none());
    let by_tls = user(&url).replace("redis://", "rediss://");
    assert!(connect_and_use(&log, RedisConfig::new(by_tls)).await.is_none());
    assert!(connect_and_use(&log, RedisConfig::new(user("redis://%%%"))).await.is_none());
    server.cli(&["ACL", "SETUSER", USER, "resetpass", ">f0rgotten"]).unwrap();
    server.cli(&["CLIENT", "KILL", "USER", USER]).unwrap();
    send_commands(&log, &store).await;
    server.kill().unwrap();
    send_commands(&log, &store).await;

    let mut redis = RedisSentinel::builder()
        .replicas(0)
        .sentinels(1)
        .config("user", &rules)
        .sentinel_password("cr3ak")
        .start()
        .unwrap();
    let config = || RedisConfig::sentinel(redis.name(), redis.urls());
    let store =
        connect_and_use(&log, config().with_credentials(USER, PASSWORD)).await.expect("connected");
    assert!(connect_and_use(&log, config().with_credentials(USER, "f0rgotten")).await.is_none());
    let wrong = redis.urls().into_iter().map(|url| url.replace("cr3ak", "f0rgotten"));
    assert!(connect_and_use(&log, RedisConfig::sentinel(redis.name(), wrong)).await.is_none());
    redis.kill(0).unwrap();
    send_commands(&log, &store).await;

    let mut cluster = RedisCluster::builder().config("user", &rules).start().unwrap();
    let urls = || cluster.urls().into_iter().map(|url| user(&url));
    let store = connect_and_use(&log, RedisConfig::cluster(urls())).await.expect("connected");
    let wrong = RedisConfig::cluster(urls()).with_credentials(USER, "f0rgotten");
    assert!(connect_and_use(&log, wrong).await.is_none());
    cluster.kill(0).unwrap();
    cluster.pause(1).unwrap();
    for _ in 0..3 {
        send_commands(&log, &store).await;
    }

    let text = log.text();
    for message in [
        "connected to Redis",
        "discarded a connection",
        "cluster node is unavailable",
        "denies access",
    ] {
        assert!(text.contains(message), "not logged: {message}");
    }
    for secret in SECRETS {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} in {lines:#?}");
    }
}
