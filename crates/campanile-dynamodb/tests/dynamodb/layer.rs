//! The idempotency layer over the store.

use std::thread;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, WithLock};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer};
use tokio::runtime;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::support::{Table, stored_bytes};

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
async fn lock_is_renewed_while_the_applications_runtime_is_blocked() {
    let table = Table::new().await;
    let store = table.store().await;
    let config = IdempotencyConfig::new("jobs").with_lock_ttl(Duration::from_secs(3));
    let mut service = ServiceBuilder::new()
        .map_request(WithLock::new)
        .layer(IdempotencyLayer::new(store, config, |job: &WithLock<Job>| job.id).unwrap())
        .service_fn(async |_: WithLock<Job>| Ok::<_, BoxError>(wait_for_renewal(&table)));
    let outcome = service.ready().await.unwrap().call(Job { id: 7 }).await.unwrap();
    assert_eq!(outcome, Outcome::Processed(()));
}

/// Blocks the thread until the only entry has changed.
fn wait_for_renewal(table: &Table) {
    let waiting = async {
        let first = stored_bytes(table).await;
        while stored_bytes(table).await == first {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(waiting);
        });
    });
}
