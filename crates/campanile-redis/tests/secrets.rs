//! Credentials are never shown. A separate test binary, because it captures the log of the process.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "redis/told.rs"]
mod told;

use std::time::Duration;

use campanile_core::{IdempotencyKey, Namespace, Operation, Owner, Retention, StoreKey};
use campanile_idempotency::Store;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::told::Told;

const USER: &str = "ab3lard";
const PASSWORD: &str = "h3loise";
const SECRETS: [&str; 4] = [USER, PASSWORD, "f0rgotten", "cr3ak"];

/// Connects if possible, and uses the store.
async fn used(told: &Told, config: RedisConfig) -> Option<RedisStore> {
    let config = config.with_command_timeout(Duration::from_millis(300)).unwrap();
    told.show(&config);
    match RedisStore::connect(config).await {
        Ok(store) => {
            command(told, &store).await;
            Some(store)
        }
        Err(error) => {
            told.error(&error);
            None
        }
    }
}

async fn command(told: &Told, store: &RedisStore) {
    told.show(store);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let namespace = Namespace::try_from("tests").unwrap();
        let command = campanile_core::Command {
            key: StoreKey::new(namespace, IdempotencyKey::new(name).unwrap()),
            operation: Operation::Cancel { owner: Owner::new(1).unwrap() },
            retention: Retention::default(),
        };
        if let Err(error) = store.apply(command).await {
            told.error(&error);
        }
    }
}

fn user(url: &str) -> String {
    url.replace("redis://", &format!("redis://{USER}:{PASSWORD}@"))
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_show_in_no_event_no_error_and_no_debug_output() {
    let told = Told::default();
    told.listen();
    let rules = format!("{USER} on >{PASSWORD} ~* +@all");

    let mut server = RedisServer::builder().config("user", &rules).start().unwrap();
    let url = server.url();
    let store = used(&told, RedisConfig::new(user(&url))).await.expect("connected");
    let set = RedisConfig::new(&*url).with_credentials(USER, PASSWORD);
    used(&told, set).await.expect("connected");
    let wrong = RedisConfig::new(&*url).with_credentials(USER, "f0rgotten");
    assert!(used(&told, wrong).await.is_none());
    let by_tls = user(&url).replace("redis://", "rediss://");
    assert!(used(&told, RedisConfig::new(by_tls)).await.is_none());
    assert!(used(&told, RedisConfig::new(user("redis://%%%"))).await.is_none());
    server.cli(&["ACL", "SETUSER", USER, "resetpass", ">f0rgotten"]).unwrap();
    server.cli(&["CLIENT", "KILL", "USER", USER]).unwrap();
    command(&told, &store).await;
    server.kill().unwrap();
    command(&told, &store).await;

    let mut redis = RedisSentinel::builder()
        .replicas(0)
        .sentinels(1)
        .config("user", &rules)
        .sentinel_password("cr3ak")
        .start()
        .unwrap();
    let config = || RedisConfig::sentinel(redis.name(), redis.urls());
    let store = used(&told, config().with_credentials(USER, PASSWORD)).await.expect("connected");
    assert!(used(&told, config().with_credentials(USER, "f0rgotten")).await.is_none());
    let wrong = redis.urls().into_iter().map(|url| url.replace("cr3ak", "f0rgotten"));
    assert!(used(&told, RedisConfig::sentinel(redis.name(), wrong)).await.is_none());
    redis.kill(0).unwrap();
    command(&told, &store).await;

    let mut cluster = RedisCluster::builder().config("user", &rules).start().unwrap();
    let urls = || cluster.urls().into_iter().map(|url| user(&url));
    let store = used(&told, RedisConfig::cluster(urls())).await.expect("connected");
    let wrong = RedisConfig::cluster(urls()).with_credentials(USER, "f0rgotten");
    assert!(used(&told, wrong).await.is_none());
    cluster.kill(0).unwrap();
    cluster.pause(1).unwrap();
    for _ in 0..3 {
        command(&told, &store).await;
    }

    let text = told.text();
    for told in [
        "connected to Redis",
        "discarded a connection",
        "cluster node is unavailable",
        "denies access",
    ] {
        assert!(text.contains(told), "not logged: {told}");
    }
    for secret in SECRETS {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} in {lines:#?}");
    }
}
