//! What a handler writes and what its entry says are one.

use campanile_core::{BoxError, Outcome, Request};
use tower::service_fn;

use crate::world::{World, book};

#[tokio::test]
async fn what_the_handler_writes_is_committed_with_its_entry_and_once() {
    let world = World::new().await;
    assert_eq!(world.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert!(world.run(service_fn(book), "b-1").await.unwrap().is_duplicate());
    assert_eq!(world.booked("b-1"), "1|100");
    assert_eq!(world.entry(), "C|1");
    assert_eq!(world.open_transactions(), "0");
}

#[tokio::test]
async fn what_a_failed_handler_wrote_is_gone_and_its_attempt_is_counted() {
    let world = World::new().await;
    let fails = service_fn(async |request: Request<()>| {
        book(request).await?;
        Err::<(), BoxError>("no such account".into())
    });
    world.run(fails, "b-1").await.unwrap_err();
    assert_eq!(world.booked("b-1"), "0|0");
    assert_eq!(world.entry(), "R|1");
    assert_eq!(world.open_transactions(), "0");
    assert_eq!(world.run(service_fn(book), "b-1").await.unwrap(), Outcome::Processed(()));
    assert_eq!(world.entry(), "C|2");
}
