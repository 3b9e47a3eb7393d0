//! A buffer around the layer, and one inside.

use campanile_core::{BoxError, Outcome, Request, State};
use tower::{ServiceBuilder, service_fn};

use super::run::stage;
use crate::world::{Guarding, World, is_pending, request};

#[tokio::test(start_paused = true)]
async fn buffer_idempotency_fails_the_attempt_of_a_caller_who_leaves() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service = ServiceBuilder::new().buffer(4).layer(world.layer()).service(handler);
    let call = service.start(request("p-1"));
    let _held = stage.next_request().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    world.assert_quiet().await;
    let entry = world.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn buffer_idempotency_lets_its_worker_wait_for_readiness_without_a_lock() {
    let world = World::new();
    let (handler, mut stage) = stage();
    let service =
        ServiceBuilder::new().buffer(4).layer(world.layer()).concurrency_limit(1).service(handler);
    let calls = ["p-1", "p-2", "p-3"].map(|id| service.start(request(id)));
    for (number, call) in calls.into_iter().enumerate() {
        let (_, respond) = stage.next_request().await.unwrap();
        assert!(is_pending(&call).await);
        assert_eq!(world.store.count("acquire"), number + 1);
        respond.send_response("done");
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_buffer_serves_what_is_not_clone() {
    struct Connection;
    let world = World::new();
    let connection = Connection;
    let handler = service_fn(move |_: Request<()>| {
        let Connection = &connection;
        std::future::ready(Ok::<_, BoxError>("done"))
    });
    let service = ServiceBuilder::new().layer(world.layer()).buffer(4).service(handler);
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}
