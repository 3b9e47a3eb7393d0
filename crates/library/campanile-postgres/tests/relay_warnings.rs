//! Logs of a refused outbox message and of a lost session, each at most once a minute. A separate
//! binary, because it captures all log messages.

#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "outbox/brokers.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod brokers;
#[path = "../../campanile-redis/tests/redis/captured_log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod captured_log;
#[path = "outbox/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;
#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use tokio::time::{sleep, timeout};

use crate::captured_log::CapturedLog;
use crate::fixture::{Fixture, bill};
use crate::support::EVENT_TIMEOUT;

#[tokio::test]
async fn refused_message_and_lost_session_are_each_logged_once() {
    let log = CapturedLog::default();
    log.listen();
    let fixture = Fixture::new().await;
    fixture.brokers.refuse("a");
    fixture.publish("b-1", [bill("b", "secret"), bill("a", "secret")]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.refused() > 3).await;
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("message refused")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    for part in ["WARN", "topic=\"bills\"", "id=2", "refused=1", "refused by the test"] {
        assert!(lines[0].contains(part), "no {part}: {}", lines[0]);
    }
    assert!(!text.contains("secret"), "{text}");

    fixture.terminate_leader();
    let session_loss_logged = async {
        while !log.text().contains("relay cannot reach the outbox") {
            sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(EVENT_TIMEOUT, session_loss_logged).await.unwrap();
    relay.stop().await;
}
