//! The documented permissions are sufficient.

use std::time::Duration;

use campanile_core::Reply;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::contract::{self, RealTime};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::support::{acquire, acquire_lock, apply, key};

/// Reads the permissions that the documentation lists for this kind of server.
fn documented(whose: &str) -> String {
    let docs = include_str!("../../src/config.rs").lines();
    let lines = docs.filter_map(|line| line.trim().strip_prefix("/// "));
    let mut rules = lines.filter_map(|line| Some(line.strip_prefix(whose)?.trim()));
    let rules = rules.find(|rules| rules.starts_with(['~', '+']));
    rules.expect("the documentation should have this line").to_owned()
}

fn user(rules: &str) -> String {
    format!("app on >Wr1ghtW0rd {rules}")
}

#[tokio::test]
async fn documented_server_permissions_satisfy_the_contract() {
    let server =
        RedisServer::builder().config("user", &user(&documented("server"))).start().unwrap();
    let config = RedisConfig::new(format!("redis://{}", server.addr()));
    let config = config.with_credentials("app", "Wr1ghtW0rd");
    let store = RedisStore::connect(config).await.unwrap();
    contract::run(&store, &RealTime).await;
}

#[tokio::test]
async fn documented_sentinel_permissions_satisfy_the_contract() {
    let redis = RedisSentinel::builder()
        .sentinels(1)
        .config("user", &user(&documented("primary")))
        .sentinel_config("user", &user(&documented("sentinel")))
        .start()
        .unwrap();
    let urls = redis.urls().into_iter();
    let urls = urls.map(|url| url.replace("redis://", "redis://app:Wr1ghtW0rd@"));
    let config = RedisConfig::sentinel(redis.name(), urls).with_credentials("app", "Wr1ghtW0rd");
    let store = RedisStore::connect(config).await.unwrap();
    contract::run(&store, &RealTime).await;
}

#[tokio::test]
async fn documented_cluster_permissions_satisfy_the_contract() {
    let mut cluster =
        RedisCluster::builder().config("user", &user(&documented("node"))).start().unwrap();
    let config = || {
        let config = RedisConfig::cluster(cluster.urls()).with_credentials("app", "Wr1ghtW0rd");
        config.with_command_timeout(Duration::from_secs(60))
    };
    let store = RedisStore::connect(config()).await.unwrap();
    contract::run(&store, &RealTime).await;

    // A slot that is being moved.
    let moving = key("key 0");
    let slot = crate::cluster::slot(&cluster, &moving);
    let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
    cluster.begin_move(slot, to).unwrap();
    acquire_lock(&store, &moving, 1).await;
    cluster.end_move(slot, to).unwrap();
    let reply = apply(&store, &moving, acquire(2)).await.unwrap();
    assert!(matches!(reply, Reply::Locked { .. }), "{reply:?}");
}
