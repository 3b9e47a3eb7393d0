//! Relays, sessions and servers that end: nothing is lost, and the header identifies a message that
//! is published twice.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::Output;
use campanile_postgres::{Inbox, PgStore, migrate};
use campanile_test::PgServer;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::brokers::{Brokers, text};
use crate::fixture::{Fixture, bill, id_headers};
use crate::support::{EVENT_TIMEOUT, long_timeouts};

/// Removes repeated messages; keeps the order of the first acknowledgments.
fn first_publications(published: Vec<Output>) -> Vec<Output> {
    let mut seen = HashSet::new();
    published.into_iter().filter(|output| seen.insert(id_headers(output))).collect()
}

#[tokio::test]
async fn relay_session_loss_hands_over_without_losing_messages() {
    let fixture = Fixture::new().await;
    let relays = [fixture.relay(), fixture.relay()];
    for round in 0..4 {
        let key = format!("k{round}");
        fixture.publish(&format!("b-{round}"), [bill(&key, 0), bill(&key, 1)]).await;
        fixture.wait_until_empty().await;
        assert_eq!(fixture.brokers.payloads_of(&key), ["0", "1"]);
        fixture.terminate_leader();
        // Written after one leader is gone and before there is another.
        fixture.publish(&format!("c-{round}"), [bill(&key, 2)]).await;
        fixture.wait_until_empty().await;
        assert_eq!(fixture.brokers.payloads_of(&key), ["0", "1", "2"]);
    }
    for relay in relays {
        relay.stop().await;
    }
}

#[tokio::test]
async fn crash_before_deletion_publishes_again_with_same_header() {
    let fixture = Fixture::new().await;
    let relay = fixture.relay();
    // Once the topic has acknowledged a message, several of its messages may be buffered.
    fixture.publish("b-0", [bill("first", 0)]).await;
    fixture.wait_until_empty().await;
    fixture.brokers.hold("a");
    fixture.publish("b-1", [bill("a", 0), bill("a", 1)]).await;
    fixture.brokers.wait_until(|brokers| brokers.has_in_flight("a")).await;
    // Block deletions.
    let blocking = fixture.database.client().await;
    blocking.batch_execute("BEGIN; LOCK TABLE campanile.outbox IN EXCLUSIVE MODE").await.unwrap();
    fixture.brokers.resume("a");
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == 2).await;
    relay.crash().await;
    // The session may still be waiting to delete. Terminate it, as a lost connection would.
    let no_relay_session = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() \
                AND query LIKE '%campanile.relay%' AND pid <> pg_backend_pid()";
    fixture.database.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND query LIKE '%campanile.relay%' AND pid <> pg_backend_pid()",
    );
    fixture.database.wait_for(no_relay_session).await;
    blocking.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(fixture.count_messages(), 2);
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(fixture.brokers.payloads_of("a"), ["0", "1", "0", "1"]);
    let published = fixture.brokers.published();
    assert!(published[1..3] == published[3..], "headers or timestamps differ");
    assert_ne!(id_headers(&published[1]), id_headers(&published[2]));
}

#[tokio::test]
async fn dropped_relay_loses_no_message_and_keeps_the_order_per_key() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = Fixture::new().await;
    let mut written = HashMap::<String, usize>::new();
    for round in 0..30 {
        let outputs: Vec<_> = (0..random.usize(1..20))
            .map(|_| {
                let key = format!("k{}", random.u8(..8));
                let number = written.entry(key.clone()).or_default();
                *number += 1;
                bill(&key, *number - 1)
            })
            .collect();
        fixture.publish(&format!("b-{round}"), outputs).await;
        let key = format!("k{}", random.u8(..8));
        if random.bool() {
            fixture.brokers.refuse(&key);
        }
        // Drop the relay once a random number of messages have been tried: either at once, so that
        // it cannot delete the last of them, or soon after.
        let tried = |brokers: &Brokers| brokers.published().len() + brokers.refused();
        let until =
            tried(&fixture.brokers) + random.usize(1..=fixture.count_messages().div_ceil(2));
        let enough_tried = async {
            fixture.brokers.wait_until(|brokers| tried(brokers) >= until).await;
            if random.bool() {
                sleep(Duration::from_micros(random.u64(..3_000))).await;
            }
        };
        tokio::select! {
            biased;
            () = fixture.inbox.relay(fixture.brokers.clone(), pending()) => panic!("the relay ended by itself"),
            () = enough_tried => {}
        }
        fixture.brokers.accept(&key);
    }
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    relay.stop().await;
    let published = fixture.brokers.published();
    let republished = published.len() - written.values().sum::<usize>();
    println!("{republished} of {} messages were published again", published.len());
    assert!(republished > 0, "no relay was dropped between acknowledgment and deletion");
    let mut seen_numbers = HashMap::<String, usize>::new();
    for output in first_publications(published) {
        let number = seen_numbers.entry(text(&output.key)).or_default();
        assert_eq!(text(&output.payload), number.to_string(), "of {}", text(&output.key));
        *number += 1;
    }
    assert_eq!(seen_numbers, written);
}

#[tokio::test]
async fn shutdown_awaits_messages_in_flight_and_starts_none() {
    let fixture = Fixture::new().await;
    fixture.brokers.hold("a");
    fixture.publish("b-1", [bill("a", 0), bill("a", 1)]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.has_in_flight("a")).await;
    let brokers = fixture.brokers.clone();
    let ((), ()) = tokio::join!(relay.stop(), async { brokers.resume("a") });
    assert_eq!(fixture.brokers.payloads_of("a"), ["0"]);
    assert_eq!(fixture.count_messages(), 1);
}

#[tokio::test]
async fn unresponsive_brokers_delay_shutdown_for_seconds_only() {
    let fixture = Fixture::new().await;
    fixture.brokers.hold("a");
    fixture.publish("b-1", [bill("a", 0)]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.has_in_flight("a")).await;
    timeout(EVENT_TIMEOUT, relay.stop()).await.unwrap();
    assert_eq!(fixture.count_messages(), 1);
}

#[tokio::test]
async fn relay_ends_after_session_loss_during_shutdown() {
    let fixture = Fixture::new().await;
    fixture.brokers.hold("a");
    fixture.publish("b-1", [bill("a", 0)]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.has_in_flight("a")).await;
    let stop = relay.stop();
    let ended = async {
        tokio::task::yield_now().await;
        fixture.terminate_leader();
        fixture.brokers.resume("a");
    };
    tokio::join!(stop, ended);
}

#[tokio::test]
async fn hung_relay_is_replaced_by_another() {
    let fixture = Fixture::new().await;
    let relay = fixture.inbox.relay(fixture.brokers.clone(), pending());
    let (hang, hung) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (hang_requested, report_hung) = (hang.clone(), hung.clone());
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    let hanging_process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let relay = tokio::spawn(relay);
            hang_requested.notified().await;
            report_hung.notify_one();
            resumed.recv().unwrap_err();
            relay.abort();
        });
    });
    fixture.publish("b-1", [bill("a", 0)]).await;
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == 1).await;
    hang.notify_one();
    hung.notified().await;
    let other = fixture.relay();
    fixture.publish("b-2", [bill("a", 1)]).await;
    fixture.wait_until_empty().await;
    drop(resume);
    hanging_process.join().unwrap();
    assert_eq!(fixture.brokers.payloads_of("a").last().unwrap(), "1");
    other.stop().await;
}

#[tokio::test]
async fn relay_continues_after_a_server_restart() {
    let mut server = PgServer::start().unwrap();
    migrate(server.url()).await.unwrap();
    let store = PgStore::connect(long_timeouts(&server.url())).await.unwrap();
    let inbox = Inbox::new(&store).unwrap();
    let brokers = Brokers::default();
    let relay = tokio::spawn(inbox.relay(brokers.clone(), pending()));
    for key in ["a", "b", "c"] {
        let sql = format!("SELECT campanile.publish('bills', '{key}', NULL, NULL, '{{}}', '{{}}')");
        server.psql(&sql).unwrap();
        // The message is written without this process, so nothing notifies the relay.
        brokers.wait_until(|brokers| brokers.payloads_of(key).len() == 1).await;
        server.kill().unwrap();
        server.restart().unwrap();
    }
    relay.abort();
}
