//! The requests that a record costs, as documented.

use std::time::Duration;

use campanile_core::{Operation, Reply};
use campanile_dynamodb::DynamoDbStore;

use crate::support::{Requests, Table, acquire, acquire_grant, apply, complete, key, sdk};

#[tokio::test]
async fn record_costs_the_documented_requests() {
    const CHANGE: [&str; 2] = ["GetItem", "PutItem"];
    let table = Table::new().await;
    let requests = Requests::default();
    let config = table.config_with(sdk(&table.server.url()).interceptor(requests.clone()));
    let store = DynamoDbStore::connect(config).await.unwrap();
    assert_eq!(requests.take(), ["GetItem"]);
    let key = key("key");

    let grant = acquire_grant(&store, &key, 1).await;
    assert_eq!(requests.take(), CHANGE);
    let renew = Operation::Renew { grant, ttl: Duration::from_secs(60) };
    assert_eq!(apply(&store, &key, renew).await.unwrap(), Reply::Renewed);
    assert_eq!(requests.take(), CHANGE);
    let step = Operation::RecordStep { grant, name: "charge".into(), result: "1".into() };
    assert_eq!(apply(&store, &key, step).await.unwrap(), Reply::StepRecorded);
    assert_eq!(requests.take(), CHANGE);
    let fail =
        Operation::Fail { grant, delay: Duration::ZERO, last: false, error: "declined".into() };
    assert_eq!(apply(&store, &key, fail).await.unwrap(), Reply::Retrying);
    assert_eq!(requests.take(), CHANGE);
    let grant = acquire_grant(&store, &key, 2).await;
    assert_eq!(requests.take(), CHANGE);
    assert_eq!(apply(&store, &key, complete(grant)).await.unwrap(), Reply::Completed);
    assert_eq!(requests.take(), CHANGE);

    let reply = apply(&store, &key, acquire(3)).await.unwrap();
    assert!(matches!(reply, Reply::Duplicate { .. }), "{reply:?}");
    assert_eq!(requests.take(), ["GetItem"]);
}

#[tokio::test]
async fn entry_without_reply_and_steps_is_small() {
    let table = Table::new().await;
    acquire_grant(&table.store().await, &key("key"), 1).await;
    let item = &table.items().await[0];
    let names: usize = item.keys().map(String::len).sum();
    let values = item["id"].as_s().unwrap().len() + item["entry"].as_b().unwrap().as_ref().len();
    // A number takes about a byte for two digits.
    let bytes = names + values + 8;
    assert!((100..200).contains(&bytes), "{bytes}");
}
