//! Handlers that wait for connections are told of early, with what to do. A binary of its own, because it
//! listens to everything that is told.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod support;
#[path = "../../campanile-redis/tests/redis/told.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod told;
#[path = "inbox/world.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod world;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::told::Told;
use crate::world::{LONG, World, book, request};

#[tokio::test]
async fn handlers_that_wait_for_a_connection_are_told_of_with_how_to_have_more() {
    let told = Told::default();
    told.listen();
    let world = World::new().await.with(|inbox| inbox.with_connections(1).unwrap());
    let (began, go_on) = (Notify::new(), Notify::new());
    let (began, go_on): (&'static _, &'static _) =
        (Box::leak(began.into()), Box::leak(go_on.into()));
    let service = world.layer().layer(service_fn(async |request| {
        began.notify_one();
        go_on.notified().await;
        book(request).await
    }));
    let first = tokio::spawn(service.oneshot(request("b-1")));
    began.notified().await;
    let waiting = async {
        while !told.text().contains("Inbox::with_connections") {
            sleep(std::time::Duration::from_millis(20)).await;
        }
        go_on.notify_one();
    };
    let second = world.run(service_fn(book), "b-2");
    let (second, ()) = timeout(LONG, async { tokio::join!(second, waiting) }).await.unwrap();
    second.unwrap();
    first.await.unwrap().unwrap();
    let text = told.text();
    let lines = text.lines().filter(|line| line.contains("handlers wait for connections"));
    let lines: Vec<_> = lines.collect();
    assert!(
        lines.len() == 1 && lines[0].contains("WARN") && lines[0].contains("1 of at most 1"),
        "{lines:?}"
    );
}
