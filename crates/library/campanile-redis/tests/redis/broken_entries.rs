//! An unreadable entry is reported as corrupt, is never treated as absent, and is left unchanged.

use std::time::Duration;

use campanile_core::{FencingToken, Operation, Reply, StoreKey};
use campanile_idempotency::Store;

use crate::support::{
    acquire, acquire_lock, command, complete, grant, key, owner, raw_connection, redis_key,
    replies, server_and_store,
};

/// Operations of the owner 1.
fn every_operation(token: FencingToken) -> Vec<Operation> {
    let grant = grant(token, 1);
    let second = Duration::from_secs(1);
    vec![
        acquire(1),
        Operation::Renew { grant, ttl: second },
        complete(grant, "reply"),
        Operation::Fail { grant, delay: second, last: true, error: "error".into() },
        Operation::Release { grant, ran: true },
        Operation::Cancel { owner: owner(1) },
        Operation::RecordStep { grant, name: "step".into(), result: "1".into() },
        Operation::GiveUp { grant, reason: "reason".into() },
        Operation::Redrive { token: grant.token, force: true },
    ]
}

/// Stores a value under a key, sends every operation on that key between two healthy keys, and
/// asserts that only this key is affected.
async fn assert_corrupt(
    what: &str,
    token: FencingToken,
    put: impl Fn(&mut redis::Connection, &[u8]),
) {
    let (server, store) = server_and_store().await;
    let mut raw = raw_connection(&server);
    let bad = key("bad");
    let name = redis_key(&bad);
    put(&mut raw, &name);
    let dump = |raw: &mut redis::Connection| -> Vec<u8> {
        redis::cmd("DUMP").arg(&name).query(raw).unwrap()
    };
    let before = dump(&mut raw);

    for operation in every_operation(token) {
        let neighbour = |n: u8| -> StoreKey { key(format!("{} {n}", operation.name())) };
        let batch = vec![
            command(&neighbour(1), acquire(1)),
            command(&bad, operation.clone()),
            command(&neighbour(2), acquire(1)),
        ];
        let replies = replies(store.apply_batch(batch).await);
        assert_eq!(replies[1], Reply::Corrupt, "{what}: {}", operation.name());
        assert!(matches!(replies[0], Reply::Acquired { .. }), "{what}: {replies:?}");
        assert!(matches!(replies[2], Reply::Acquired { .. }), "{what}: {replies:?}");
        assert_eq!(dump(&mut raw), before, "{what} was changed by {}", operation.name());
    }
}

fn set(raw: &mut redis::Connection, name: &[u8], value: &[u8]) {
    redis::cmd("SET").arg(name).arg(value).exec(raw).unwrap();
}

#[tokio::test]
async fn value_of_another_type_is_corrupt_and_unchanged() {
    for (kind, verb, argument) in [
        ("list", "LPUSH", "x"),
        ("set", "SADD", "x"),
        ("hyperloglog", "PFADD", "x"),
        ("hash", "HSET", "f"),
    ] {
        assert_corrupt(kind, FencingToken::new(1).unwrap(), |raw, name| {
            let mut put = redis::cmd(verb);
            put.arg(name).arg(argument);
            if kind == "hash" {
                put.arg("v");
            }
            put.exec(raw).unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn garbage_and_newer_versions_are_corrupt_and_unchanged() {
    let (server, store) = server_and_store().await;
    let key = key("good");
    let token = acquire_lock(&store, &key, 1).await.token;
    let good: Vec<u8> =
        redis::cmd("GET").arg(redis_key(&key)).query(&mut raw_connection(&server)).unwrap();
    assert_eq!(good.len(), 44);

    assert_corrupt("nothing", token, |raw, name| set(raw, name, b"")).await;
    assert_corrupt("text", token, |raw, name| {
        set(raw, name, "no entry, though long enough for one, it seems".as_bytes())
    })
    .await;
    for length in [1, 2, 24, 43] {
        let what = format!("a header cut to {length} bytes");
        assert_corrupt(&what, token, |raw, name| set(raw, name, &good[..length])).await;
    }
    for (what, at, byte) in [
        ("a later version", 0, 0xC2),
        ("an unknown state", 1, 5),
        ("a flag", 1, 65),
        ("a token", 8, 1),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_corrupt(what, token, |raw, name| set(raw, name, &bad)).await;
    }
}
