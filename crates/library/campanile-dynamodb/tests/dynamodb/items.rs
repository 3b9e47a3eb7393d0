//! What is in the table.

use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use campanile_core::{Command, Operation, Reply, Retention};
use campanile_dynamodb::{DynamoDbStore, aws_sdk_dynamodb};
use campanile_idempotency::{Store, StoreErrorKind};

use crate::clock::Ahead;
use crate::support::{
    Table, acquire, acquire_grant, apply, chain, complete, key, sdk, stored_bytes,
};

#[tokio::test]
async fn unreadable_item_is_reported_and_left_unchanged() {
    let table = Table::new().await;
    let store = table.store().await;
    let key = key("key");
    let held = acquire_grant(&store, &key, 1).await;
    let item = table.items().await.remove(0);
    let mut other = Vec::new();
    for (name, value) in [
        ("entry", Some(AttributeValue::B(Blob::new(*b"not an entry")))),
        ("entry", Some(AttributeValue::S("not bytes".into()))),
        ("entry", None),
        ("expires_at", Some(AttributeValue::N("-1".into()))),
        ("expires_at", None),
    ] {
        let mut broken = item.clone();
        broken.remove(name);
        broken.extend(value.map(|value| (name.to_owned(), value)));
        other.push(broken);
    }
    for broken in other {
        table.put(broken.clone()).await;
        for operation in [
            acquire(2),
            complete(held),
            Operation::Renew { grant: held, ttl: Duration::from_secs(30) },
            Operation::Release { grant: held, ran: false },
            Operation::Cancel { owner: held.owner },
            Operation::GiveUp { grant: held, reason: "".into() },
        ] {
            let error = apply(&store, &key, operation).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unreadable, "{broken:?}");
        }
        assert_eq!(table.items().await, [broken]);
    }
}

#[tokio::test]
async fn expired_entry_is_absent_before_it_is_deleted() {
    let table = Table::new().await;
    let key = key("key");
    let grant = acquire_grant(&table.store().await, &key, 1).await;
    let retention = Retention { completed: Duration::from_secs(3600), ..Retention::default() };
    let command = Command { key: key.clone(), operation: complete(grant), retention };
    table.store().await.apply(command).await.unwrap();
    let before = stored_bytes(&table).await;

    for (ahead, is_expired) in [(3500, false), (3700, true)] {
        let ahead = Duration::from_secs(ahead);
        let config = table.config_with(sdk(&table.server.url()).time_source(Ahead(ahead)));
        let config = config.with_max_clock_difference(ahead * 2);
        let store = DynamoDbStore::connect(config).await.unwrap();
        assert_eq!(stored_bytes(&table).await, before);
        let reply = apply(&store, &key, acquire(2)).await.unwrap();
        match reply {
            Reply::Duplicate { .. } if !is_expired => {}
            Reply::Acquired { attempt: 1, token, .. } if is_expired => assert!(token > grant.token),
            other => panic!("{ahead:?}: {other:?}"),
        }
    }
}

/// An entry of a later version, for example, whose process was replaced by this one.
#[tokio::test]
async fn expired_item_is_absent_whatever_it_contains() {
    let table = Table::new().await;
    let store = table.store().await;
    let key = key("key");
    acquire_grant(&store, &key, 1).await;
    let mut item = table.items().await.remove(0);
    item.insert("entry".into(), AttributeValue::B(Blob::new(*b"not an entry")));
    item.insert("expires_at".into(), AttributeValue::N("1".into()));
    table.put(item).await;
    acquire_grant(&store, &key, 2).await;
}

#[tokio::test]
async fn entry_that_is_too_large_is_refused_with_advice() {
    let table = Table::new().await;
    let store = table.store().await;
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    let reply = Some(vec![0; 400 * 1024].into());
    let large = campanile_core::Operation::Complete {
        grant,
        attempt: 1,
        fingerprint: None,
        reply,
        details: None,
    };
    let error = apply(&store, &key, large).await.unwrap_err();
    assert!(chain(&error).contains("at most 400 KB"), "{}", chain(&error));
    assert_eq!(apply(&store, &key, complete(grant)).await.unwrap(), Reply::Completed);
}
