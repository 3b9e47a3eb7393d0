//! The idempotency layer over the store.

use std::thread;
use std::time::Duration;

use campanile_core::{BoxError, Operation, Outcome, Reply, WithLock};
use campanile_dynamodb::DynamoDbStore;
use campanile_idempotency::{IdempotencyLayer, Store};
use tokio::runtime;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::support::{Requests, Table, acquire_grant, apply, key, sdk};

#[derive(Clone)]
struct Job {
    id: u64,
}

#[tokio::test]
async fn layer_answers_duplicates_of_another_process() {
    let table = Table::new().await;
    for round in 0..3 {
        let store = table.store().await;
        let key = |job: &WithLock<Job>| job.id;
        let mut service = ServiceBuilder::new()
            .map_request(WithLock::new)
            .layer(IdempotencyLayer::new(store, "jobs", key).unwrap())
            .service_fn(async |_: WithLock<Job>| Ok::<_, BoxError>("done"));
        let mut call = async |id| service.ready().await.unwrap().call(Job { id }).await.unwrap();
        // Its own job, and one that it shares with the others.
        assert_eq!(call(10 + round).await, Outcome::Processed("done"));
        assert_eq!(call(7).await.is_duplicate(), round > 0);
    }
    assert_eq!(table.items().await.len(), 4);
}

#[tokio::test]
async fn renewals_use_no_connection_of_a_blocked_runtime() {
    let table = Table::new().await;
    let requests = Requests::default();
    let config = table.config_with(sdk(&table.server.url()).interceptor(requests.clone()));
    let store = DynamoDbStore::connect(config).await.unwrap();
    let key = key("key");
    let grant = acquire_grant(&store, &key, 1).await;
    requests.take();
    let keeper = thread::spawn(move || {
        let renew = Operation::Renew { grant, ttl: Duration::from_secs(60) };
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(apply(&store.for_renewals(), &key, renew)).unwrap()
    });
    // Blocks this test's runtime, and therefore its connections.
    assert_eq!(keeper.join().unwrap(), Reply::Renewed);
    // On a connection of this runtime, a request would be repeated after its timeout.
    assert_eq!(requests.take(), ["GetItem", "PutItem"]);
}
