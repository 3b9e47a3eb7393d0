//! A cluster with all of its nodes.

use campanile_core::Reply;
use campanile_idempotency::Store;
use campanile_redis::{ConnectError, RedisConfig, RedisStore};
use campanile_test::contract::{self, RealTime};
use campanile_test::{Proxy, RedisCluster, free_port};

use super::{long_timeout, owner, start_cluster};
use crate::support::{acquire, acquire_lock, chain, command, complete, grant, key, replies};

#[tokio::test]
async fn store_contract_holds_on_cluster() {
    let (_cluster, store) = start_cluster().await;
    contract::run(&store, &RealTime).await;
    contract::run_expire(&store, &RealTime).await;
}

#[tokio::test]
async fn batch_across_masters_is_answered_in_order() {
    let (cluster, store) = start_cluster().await;
    assert_eq!(store.max_batch().get(), 16 * 64);
    let keys: Vec<_> = (0..300).map(|n| key(n.to_string())).collect();
    let masters: std::collections::BTreeSet<_> =
        keys[..50].iter().map(|key| owner(&cluster, key)).collect();
    assert_eq!(masters.len(), 3);

    let acquires = keys.iter().zip(1..).map(|(key, bits)| command(key, acquire(bits))).collect();
    let mut completions = Vec::new();
    for ((key, reply), bits) in keys.iter().zip(replies(store.apply_batch(acquires).await)).zip(1..)
    {
        let Reply::Acquired { token, attempt: 1, .. } = reply else { panic!("{reply:?}") };
        completions.push(command(key, complete(grant(token, bits), "done")));
    }
    for reply in replies(store.apply_batch(completions).await) {
        assert_eq!(reply, Reply::Completed);
    }
}

#[tokio::test]
async fn one_seed_and_one_password_reach_all_nodes() {
    let cluster = RedisCluster::builder().password("sesame").start().unwrap();
    let urls = [format!("redis://127.0.0.1:{}", free_port().unwrap()), cluster.urls()[1].clone()];
    let config = RedisConfig::cluster(urls).with_credentials("default", "sesame");
    let store = RedisStore::connect(config).await.unwrap();
    for n in 0..50 {
        acquire_lock(&store, &key(n.to_string()), 1).await;
    }
    let shown = format!("{store:?}");
    assert!(shown.contains(&cluster.node(1).addr().to_string()), "{shown}");
    assert!(!shown.contains("sesame"), "{shown}");
}

#[tokio::test]
async fn nodes_are_reached_at_announced_addresses() {
    let cluster = RedisCluster::start().unwrap();
    let proxies: Vec<_> = (0..3).map(|n| Proxy::to(cluster.node(n).addr()).unwrap()).collect();
    for (node, proxy) in proxies.iter().enumerate() {
        let port = proxy.addr().port().to_string();
        cluster.node(node).cli(&["CONFIG", "SET", "cluster-announce-port", &port]).unwrap();
    }
    let store =
        RedisStore::connect(RedisConfig::cluster([cluster.urls().remove(0)])).await.unwrap();
    let of_second = super::keys_of(&cluster, 1).next().unwrap();
    // The other nodes learn the announced port by gossip.
    let announced = || {
        let slots = cluster.node(0).cli(&["CLUSTER", "SLOTS"]).unwrap();
        slots.contains(&proxies[1].addr().port().to_string()).then_some(())
    };
    campanile_test::eventually(std::time::Duration::from_secs(20), announced).unwrap();
    drop(store);
    let store =
        RedisStore::connect(RedisConfig::cluster([cluster.urls().remove(0)])).await.unwrap();
    acquire_lock(&store, &of_second, 1).await;
    proxies[1].cut();
    let error = crate::support::apply(&store, &of_second, acquire(1)).await.unwrap_err();
    assert!(chain(&error).contains(&proxies[1].addr().to_string()), "{}", chain(&error));
}

#[tokio::test]
async fn connect_to_non_cluster_fails() {
    let server = campanile_test::RedisServer::start().unwrap();
    let config = RedisConfig::cluster([server.url()]);
    let error = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(chain(&error).contains("cluster support disabled"), "{}", chain(&error));
    let none = RedisConfig::cluster(Vec::<String>::new());
    let error = RedisStore::connect(none).await.unwrap_err();
    assert!(matches!(error, ConnectError::Url { .. }), "{error:?}");
}

#[tokio::test]
async fn different_bucket_count_is_refused_on_cluster() {
    let (cluster, store) = start_cluster().await;
    acquire_lock(&store, &key("key"), 1).await;
    let other = RedisStore::connect(long_timeout(&cluster).with_buckets(32)).await.unwrap();
    let error = crate::support::apply(&other, &key("key"), acquire(2)).await.unwrap_err();
    assert!(chain(&error).contains("with_buckets(16)"), "{}", chain(&error));
}
