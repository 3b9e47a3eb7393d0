//! A store that accepts calls and does not answer them.

use std::time::Duration;

use campanile_core::{BoxError, Clock, DecodeLayer, Request, key};
use campanile_driver::{Driver, DriverConfig, Router, SourceContext, Unhealthy};
use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_test::faults::{Fault, FaultyStore};
use tokio::time::{Instant, sleep};
use tower::ServiceBuilder;

use crate::cluster::Cluster;
use crate::history::History;

#[tokio::test(start_paused = true)]
async fn store_that_does_not_record_a_completion_is_not_ready() {
    let store = FaultyStore::new(MemoryStore::new());
    let start = Instant::now();
    let (keeper, task) = LockKeeper::pair(store.clone(), Clock::from_fn(move || start.elapsed()));
    tokio::spawn(task);
    let layer = IdempotencyLayer::new(&keeper, "orders", key::coordinates()).unwrap();
    let handled = store.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |_: Request| {
            // The lock is acquired, and nothing is answered from now on.
            handled.inject_always(Fault::Hang);
            async { Ok::<_, BoxError>(()) }
        },
    );

    let cluster = Cluster::new(0, None, History::new(true, 1));
    cluster.stop_faults();
    cluster.state().set_log(0, vec![0]);
    cluster.state().set_log(1, Vec::new());
    let context = SourceContext::default();
    let handle = context.handle();
    let joined = cluster.clone();
    let driver = Driver::new(DriverConfig::new("g"), Router::single(service), {
        move |context: &SourceContext| Ok(joined.join(context.clone()))
    });
    let serving = tokio::spawn(driver.serve_on_current_task(context));
    sleep(Duration::from_millis(500)).await;
    cluster.state().assign(0);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(handle.health().ready, Ok(()), "the answer may still come");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(handle.health().ready, Err(Unhealthy::StoreUnavailable));
    store.heal();
    store.release();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(handle.health().ready, Ok(()));
    serving.abort();
}
