//! A buffer around the layer, and a buffer inside it.

use campanile_core::{BoxError, Outcome, Request, State};
use tower::{ServiceBuilder, service_fn};

use super::run::mock_handler;
use crate::harness::{Harness, TestService, is_pending, request};

#[tokio::test(start_paused = true)]
async fn buffer_idempotency_fails_attempt_of_dropped_call() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new().buffer(4).layer(harness.layer()).service(handler);
    let call = service.start(request("p-1"));
    let _held = handle.next_request().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    harness.assert_settled().await;
    let entry = harness.entry("p-1").unwrap();
    assert_eq!((entry.state(), entry.attempt()), (State::Retrying, 1));
}

#[tokio::test(start_paused = true)]
async fn buffer_idempotency_waits_for_readiness_without_lock() {
    let harness = Harness::new();
    let (handler, mut handle) = mock_handler();
    let service = ServiceBuilder::new()
        .buffer(4)
        .layer(harness.layer())
        .concurrency_limit(1)
        .service(handler);
    let calls = ["p-1", "p-2", "p-3"].map(|id| service.start(request(id)));
    for (number, call) in calls.into_iter().enumerate() {
        let (_, respond) = handle.next_request().await.unwrap();
        assert!(is_pending(&call).await);
        assert_eq!(harness.store.count("acquire"), number + 1);
        respond.send_response("done");
        assert_eq!(call.await.unwrap().unwrap(), Outcome::Processed("done"));
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_buffer_allows_non_clone_service() {
    struct Connection;
    let harness = Harness::new();
    let connection = Connection;
    let handler = service_fn(move |_: Request<()>| {
        let Connection = &connection;
        std::future::ready(Ok::<_, BoxError>("done"))
    });
    let service = ServiceBuilder::new().layer(harness.layer()).buffer(4).service(handler);
    assert_eq!(service.run("p-1").await.unwrap(), Outcome::Processed("done"));
    assert!(service.run("p-1").await.unwrap().is_duplicate());
}
