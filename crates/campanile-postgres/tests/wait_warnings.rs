//! Warnings that calls or handlers will have to wait, with advice. A separate binary, because it
//! captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
#[path = "../../campanile-redis/tests/redis/told.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod told;
#[path = "inbox/world.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod world;

use std::sync::OnceLock;
use std::time::Duration;

use campanile_postgres::PgStore;
use campanile_test::Proxy;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::Database;
use crate::told::Told;
use crate::world::{LONG, World, book, request};

/// The log messages of all tests in this binary.
fn told() -> &'static Told {
    static TOLD: OnceLock<Told> = OnceLock::new();
    TOLD.get_or_init(|| {
        let told = Told::default();
        told.listen();
        told
    })
}

#[tokio::test]
async fn a_server_that_is_too_far_away_for_a_call_is_told_at_the_start() {
    let told = told();
    let database = Database::new().await;
    database.store().await;
    let far = |text: &str| text.matches("Postgres is too far away").count();
    assert_eq!(far(&told.text()), 0, "{}", told.text());
    let (server, name) = database.url().rsplit_once('/').unwrap();
    let (user, server) = server.rsplit_once('@').unwrap();
    let proxy = Proxy::to(server).unwrap();
    proxy.delay(Duration::from_millis(30));
    let config = support::patient(&format!("{user}@{}/{name}", proxy.addr()));
    let config = config.with_command_timeout(Duration::from_millis(200)).unwrap();
    PgStore::connect(config).await.unwrap();
    let text = told.text();
    assert_eq!(far(&text), 1, "{text}");
    assert!(text.contains("`PgConfig::with_command_timeout` must be"), "{text}");
}

#[tokio::test]
async fn handlers_that_wait_for_a_connection_are_told_of_with_how_to_have_more() {
    let told = told();
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
            sleep(Duration::from_millis(20)).await;
        }
        go_on.notify_one();
    };
    let second = world.run(service_fn(book), "b-2");
    let (second, ()) = timeout(LONG, async { tokio::join!(second, waiting) }).await.unwrap();
    second.unwrap();
    first.await.unwrap().unwrap();
    let text = told.text();
    let lines = text.lines().filter(|line| line.contains("handlers are waiting for connections"));
    let lines: Vec<_> = lines.collect();
    assert!(
        lines.len() == 1 && lines[0].contains("WARN") && lines[0].contains("1 of at most 1"),
        "{lines:?}"
    );
}
