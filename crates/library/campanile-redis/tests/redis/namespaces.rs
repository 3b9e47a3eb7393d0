//! All clients of a namespace look for its entries in the same place.

use campanile_core::{IdempotencyKey, Namespace, Reply, StoreKey};
use campanile_idempotency::{Store, StoreErrorKind};
use campanile_redis::RedisStore;

use crate::support::{
    NAMESPACE, acquire, acquire_lock, apply, chain, command, key, long_timeout, server_and_store,
};

#[tokio::test]
async fn different_bucket_count_is_refused() {
    let (server, store) = server_and_store().await;
    acquire_lock(&store, &key("key"), 1).await;
    assert_eq!(server.cli(&["GET", "campanile:{tests}"]).unwrap(), "16");
    assert_eq!(server.cli(&["TTL", "campanile:{tests}"]).unwrap(), "-1");
    let entries = server.cli(&["DBSIZE"]).unwrap();

    let config = long_timeout(server.url()).with_buckets(32);
    let other = RedisStore::connect(config).await.unwrap();
    for _ in 0..2 {
        let error = apply(&other, &key("key"), acquire(2)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        let text = chain(&error);
        assert!(text.contains(NAMESPACE) && text.contains("16") && text.contains("32"), "{text}");
    }
    assert_eq!(server.cli(&["DBSIZE"]).unwrap(), entries, "nothing was written");

    let same = RedisStore::connect(long_timeout(server.url())).await.unwrap();
    assert!(matches!(apply(&same, &key("key"), acquire(2)).await.unwrap(), Reply::Locked { .. }));
}

#[tokio::test]
async fn refused_namespace_does_not_affect_others_in_batch() {
    let (server, store) = server_and_store().await;
    server.cli(&["SET", "campanile:{other}", "4"]).unwrap();
    server.cli(&["SET", "campanile:{garbled}", "four"]).unwrap();
    server.cli(&["LPUSH", "campanile:{list}", "16"]).unwrap();
    let of = |namespace: &str, name: &'static str| {
        StoreKey::new(Namespace::try_from(namespace).unwrap(), &IdempotencyKey::new(name).unwrap())
    };
    let keys = [
        of("tests", "a"),
        of("other", "a"),
        of("tests", "b"),
        of("garbled", "a"),
        of("list", "a"),
        of("other", "b"),
    ];
    let batch = keys.iter().map(|key| command(key, acquire(1))).collect();
    let kinds: Vec<_> = store
        .apply_batch(batch)
        .await
        .into_iter()
        .map(|answer| answer.err().map(|error| error.kind()))
        .collect();
    let misconfigured = Some(StoreErrorKind::Misconfigured);
    let unreadable = Some(StoreErrorKind::Unreadable);
    let refused = Some(StoreErrorKind::Unavailable);
    assert_eq!(kinds, [None, misconfigured, None, unreadable, refused, misconfigured]);
}

#[tokio::test]
async fn same_key_in_two_namespaces_is_two_keys() {
    let (_server, store) = server_and_store().await;
    for namespace in ["billing", "shipping"] {
        let namespace = Namespace::try_from(namespace).unwrap();
        acquire_lock(&store, &StoreKey::new(namespace, &IdempotencyKey::new("k").unwrap()), 1)
            .await;
    }
}
