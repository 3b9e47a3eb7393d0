//! Logs of a refused outbox message and of a lost session, each at most once a minute. A separate
//! binary, because it captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "outbox/brokers.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod brokers;
#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
#[path = "../../campanile-redis/tests/redis/told.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod told;
#[path = "outbox/world.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod world;

use tokio::time::{sleep, timeout};

use crate::told::Told;
use crate::world::{LONG, World, bill};

#[tokio::test]
async fn a_refused_message_is_told_of_once_with_its_topic_and_id_and_so_is_a_session_that_ends() {
    let told = Told::default();
    told.listen();
    let world = World::new().await;
    world.brokers.refuse("a");
    world.publish("b-1", [bill("b", "secret"), bill("a", "secret")]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.refused() > 3).await;
    let text = told.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("message refused")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    for part in ["WARN", "topic=\"bills\"", "id=2", "refused=1", "refused by the test"] {
        assert!(lines[0].contains(part), "no {part}: {}", lines[0]);
    }
    assert!(!text.contains("secret"), "{text}");

    world.terminate_leader();
    let told_of = async {
        while !told.text().contains("relay cannot reach the outbox") {
            sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, told_of).await.unwrap();
    relay.stop().await;
}
