//! The documented permissions are sufficient.

use std::time::Duration;

use campanile_core::{ExpireOutcome, Reply, State};
use campanile_idempotency::{ExpireStore, Found, InspectStore, ScanCursor, ScanFilter};
use campanile_redis::{RedisConfig, RedisStore, Safety};
use campanile_test::contract::{self, RealTime};
use campanile_test::{RedisCluster, RedisSentinel, RedisServer};

use crate::support::{
    acquire, acquire_lock, adopt, apply, chain, key, long_timeout, with_long_timeouts,
};

/// Reads the permissions that the documentation lists for this kind of server.
fn documented(whose: &str) -> String {
    let docs = include_str!("../../src/config.rs").lines();
    let lines = docs.filter_map(|line| line.trim().strip_prefix("/// "));
    let mut rules = lines.filter_map(|line| Some(line.strip_prefix(whose)?.trim()));
    let rules = rules.find(|rules| rules.starts_with(['~', '%', '+']));
    rules.expect("the documentation should have this line").to_owned()
}

fn user(rules: &str) -> String {
    format!("app on >Wr1ghtW0rd {rules}")
}

#[tokio::test]
async fn documented_server_permissions_satisfy_the_contract() {
    let server =
        RedisServer::builder().config("user", &user(&documented("server"))).start().unwrap();
    let config = long_timeout(format!("redis://{}", server.addr()));
    let config = config.with_credentials("app", "Wr1ghtW0rd");
    let store = RedisStore::connect(config).await.unwrap();
    contract::run(&store, &RealTime).await;
}

#[tokio::test]
async fn documented_sentinel_permissions_satisfy_the_contract() {
    // Without a replica, no stall is a failover.
    let redis = RedisSentinel::builder()
        .replicas(0)
        .sentinels(1)
        .config("user", &user(&documented("primary")))
        .sentinel_config("user", &user(&documented("sentinel")))
        .start()
        .unwrap();
    let urls = redis.urls().into_iter();
    let urls = urls.map(|url| url.replace("redis://", "redis://app:Wr1ghtW0rd@"));
    let config = with_long_timeouts(RedisConfig::sentinel(redis.name(), urls));
    let config = config.with_credentials("app", "Wr1ghtW0rd");
    let store = RedisStore::connect(config).await.unwrap();
    contract::run(&store, &RealTime).await;
}

#[tokio::test]
async fn documented_cluster_permissions_satisfy_the_contract() {
    let mut cluster =
        RedisCluster::builder().config("user", &user(&documented("node"))).start().unwrap();
    let config = || crate::cluster::long_timeout(&cluster).with_credentials("app", "Wr1ghtW0rd");
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

/// Settings with which a tool connects as the user that may only read.
fn reader(config: RedisConfig) -> RedisConfig {
    let config = with_long_timeouts(config).with_safety(Safety::Off);
    config.with_credentials("app", "Wr1ghtW0rd")
}

/// Asserts that the reader finds what the writer stores, and cannot write.
async fn assert_reads_only(reader: &RedisStore, writer: &RedisStore) {
    let key = key("key");
    // A namespace that was never used.
    let inspection = reader.inspect(&key).await.unwrap();
    assert_eq!(inspection.found, Found::Absent);
    acquire_lock(writer, &key, 1).await;

    assert!(matches!(reader.inspect(&key).await.unwrap().found, Found::Entry { .. }));
    let failed = ScanFilter::new(key.namespace().clone()).with_state(State::Failed);
    for (filter, expected) in [(ScanFilter::new(key.namespace().clone()), 1), (failed, 0)] {
        let (mut cursor, mut found) = (Some(ScanCursor::default()), 0);
        while let Some(at) = cursor {
            let page = reader.scan(&filter, &at).await.unwrap();
            found += page.entries.len();
            cursor = page.next;
        }
        assert_eq!(found, expected);
    }
    let error = apply(reader, &key, acquire(2)).await.unwrap_err();
    assert!(chain(&error).contains("NoPerm"), "{}", chain(&error));
}

#[tokio::test]
async fn documented_reader_permissions_suffice_on_server() {
    let rules = documented("reader");
    let server = RedisServer::builder().config("user", &user(&rules)).start().unwrap();
    let writer = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let config = reader(RedisConfig::new(format!("redis://{}", server.addr())));
    assert_reads_only(&RedisStore::connect(config).await.unwrap(), &writer).await;
}

#[tokio::test]
async fn documented_reader_permissions_suffice_behind_sentinels() {
    let rules = documented("reader") + " +role";
    let redis = RedisSentinel::builder().sentinels(1).config("user", &user(&rules));
    let redis = redis.start().unwrap();
    let config = || with_long_timeouts(RedisConfig::sentinel(redis.name(), redis.urls()));
    let writer = RedisStore::connect(config()).await.unwrap();
    assert_reads_only(&RedisStore::connect(reader(config())).await.unwrap(), &writer).await;
}

#[tokio::test]
async fn documented_reader_permissions_suffice_in_cluster() {
    let rules = documented("reader") + " +cluster|slots +asking";
    let cluster = RedisCluster::builder().config("user", &user(&rules)).start().unwrap();
    let writer = RedisStore::connect(crate::cluster::long_timeout(&cluster)).await.unwrap();
    let config = reader(RedisConfig::cluster(cluster.urls()));
    assert_reads_only(&RedisStore::connect(config).await.unwrap(), &writer).await;
}

#[tokio::test]
async fn documented_purger_permissions_suffice_and_reader_lacks_them() {
    let rules = ["purger", "reader"].map(documented);
    let server = RedisServer::builder()
        .config("user", &user(&rules[0]))
        .config("user", &user(&rules[1]).replace("app ", "reader "))
        .start()
        .unwrap();
    let writer = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    let key = key("key");
    let entry = [(key.clone(), adopt(&writer, &key).await)];
    let config = || reader(RedisConfig::new(format!("redis://{}", server.addr())));
    let reader = config().with_credentials("reader", "Wr1ghtW0rd");
    let reader = RedisStore::connect(reader).await.unwrap();
    let error = reader.expire(&entry, Duration::ZERO).await.unwrap_err();
    assert!(chain(&error).contains("NoPerm"), "{}", chain(&error));

    let purger = RedisStore::connect(config()).await.unwrap();
    let filter = ScanFilter::new(key.namespace().clone());
    assert_eq!(purger.scan(&filter, &ScanCursor::default()).await.unwrap().entries.len(), 1);
    let outcomes = purger.expire(&entry, Duration::ZERO).await.unwrap();
    assert_eq!(outcomes, [ExpireOutcome::Done]);
    assert_eq!(purger.inspect(&key).await.unwrap().found, Found::Absent);
}
