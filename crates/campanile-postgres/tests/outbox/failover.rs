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
use crate::support::patient;
use crate::world::{LONG, World, bill, known_by};

/// Removes repeated messages; keeps the order of the first acknowledgments.
fn firsts(published: Vec<Output>) -> Vec<Output> {
    let mut seen = HashSet::new();
    published.into_iter().filter(|output| seen.insert(known_by(output))).collect()
}

#[tokio::test]
async fn a_relay_whose_session_ends_is_followed_by_another_and_nothing_is_lost() {
    let world = World::new().await;
    let relays = [world.relay(), world.relay()];
    for round in 0..4 {
        let key = format!("k{round}");
        world.publish(&format!("b-{round}"), [bill(&key, 0), bill(&key, 1)]).await;
        world.wait_until_empty().await;
        assert_eq!(world.brokers.of(&key), ["0", "1"]);
        world.terminate_leader();
        // Written after one leader is gone and before there is another.
        world.publish(&format!("c-{round}"), [bill(&key, 2)]).await;
        world.wait_until_empty().await;
        assert_eq!(world.brokers.of(&key), ["0", "1", "2"]);
    }
    for relay in relays {
        relay.stop().await;
    }
}

#[tokio::test]
async fn after_a_crash_between_acknowledgement_and_deletion_a_message_comes_again_with_the_same_header()
 {
    let world = World::new().await;
    let relay = world.relay();
    // Once the topic has acknowledged a message, several of its messages may be in hand.
    world.publish("b-0", [bill("first", 0)]).await;
    world.wait_until_empty().await;
    world.brokers.hold("a");
    world.publish("b-1", [bill("a", 0), bill("a", 1)]).await;
    world.brokers.wait_until(|brokers| brokers.has("a")).await;
    // Block deletions.
    let blocking = world.database.client().await;
    blocking.batch_execute("BEGIN; LOCK TABLE campanile.outbox IN EXCLUSIVE MODE").await.unwrap();
    world.brokers.go_on("a");
    world.brokers.wait_until(|brokers| brokers.of("a").len() == 2).await;
    relay.crash().await;
    // The session may still be waiting to delete. Terminate it, as a lost connection would.
    let gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() \
                AND query LIKE '%campanile.relay%' AND pid <> pg_backend_pid()";
    world.database.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND query LIKE '%campanile.relay%' AND pid <> pg_backend_pid()",
    );
    world.wait_for(gone).await;
    blocking.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.left(), 2);
    let relay = world.relay();
    world.wait_until_empty().await;
    relay.stop().await;
    assert_eq!(world.brokers.of("a"), ["0", "1", "0", "1"]);
    let published = world.brokers.published();
    assert!(published[1..3] == published[3..], "headers or timestamps differ");
    assert_ne!(known_by(&published[1]), known_by(&published[2]));
}

#[tokio::test]
async fn whenever_a_relay_is_dropped_each_message_is_published_and_first_in_the_order_of_its_key() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::new().await;
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
        world.publish(&format!("b-{round}"), outputs).await;
        let key = format!("k{}", random.u8(..8));
        if random.bool() {
            world.brokers.refuse(&key);
        }
        // Drop the relay soon after a random number of messages have been tried.
        let tried = |brokers: &Brokers| brokers.published().len() + brokers.refused();
        let until = tried(&world.brokers) + random.usize(1..=world.left().div_ceil(2));
        let soon = async {
            world.brokers.wait_until(|brokers| tried(brokers) >= until).await;
            sleep(Duration::from_micros(random.u64(..3_000))).await;
        };
        tokio::select! {
            () = world.inbox.relay(world.brokers.clone(), pending()) => panic!("the relay ended by itself"),
            () = soon => {}
        }
        world.brokers.accept(&key);
    }
    let relay = world.relay();
    world.wait_until_empty().await;
    relay.stop().await;
    let published = world.brokers.published();
    let again = published.len() - written.values().sum::<usize>();
    println!("{again} of {} messages were published again", published.len());
    assert!(again > 0, "no relay was dropped between acknowledgment and deletion");
    let mut came = HashMap::<String, usize>::new();
    for output in firsts(published) {
        let number = came.entry(text(&output.key)).or_default();
        assert_eq!(text(&output.payload), number.to_string(), "of {}", text(&output.key));
        *number += 1;
    }
    assert_eq!(came, written);
}

#[tokio::test]
async fn a_relay_that_is_told_to_end_waits_for_what_is_on_its_way_and_begins_nothing() {
    let world = World::new().await;
    world.brokers.hold("a");
    world.publish("b-1", [bill("a", 0), bill("a", 1)]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.has("a")).await;
    let brokers = world.brokers.clone();
    let ((), ()) = tokio::join!(relay.stop(), async { brokers.go_on("a") });
    assert_eq!(world.brokers.of("a"), ["0"]);
    assert_eq!(world.left(), 1);
}

#[tokio::test]
async fn brokers_that_do_not_answer_hold_up_the_end_for_some_seconds_only() {
    let world = World::new().await;
    world.brokers.hold("a");
    world.publish("b-1", [bill("a", 0)]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.has("a")).await;
    timeout(LONG, relay.stop()).await.unwrap();
    assert_eq!(world.left(), 1);
}

#[tokio::test]
async fn a_relay_whose_session_ends_while_it_ends_ends() {
    let world = World::new().await;
    world.brokers.hold("a");
    world.publish("b-1", [bill("a", 0)]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.has("a")).await;
    let stop = relay.stop();
    let ended = async {
        tokio::task::yield_now().await;
        world.terminate_leader();
        world.brokers.go_on("a");
    };
    tokio::join!(stop, ended);
}

#[tokio::test]
async fn a_relay_whose_process_stands_still_is_followed_by_another() {
    let world = World::new().await;
    let relay = world.inbox.relay(world.brokers.clone(), pending());
    let (stand_still, stands) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, telling) = (stand_still.clone(), stands.clone());
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    let standing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let relay = tokio::spawn(relay);
            told.notified().await;
            telling.notify_one();
            resumed.recv().unwrap_err();
            relay.abort();
        });
    });
    world.publish("b-1", [bill("a", 0)]).await;
    world.brokers.wait_until(|brokers| brokers.of("a").len() == 1).await;
    stand_still.notify_one();
    stands.notified().await;
    let other = world.relay();
    world.publish("b-2", [bill("a", 1)]).await;
    world.wait_until_empty().await;
    drop(resume);
    standing.join().unwrap();
    assert_eq!(world.brokers.of("a").last().unwrap(), "1");
    other.stop().await;
}

#[tokio::test]
async fn a_relay_waits_for_a_server_that_is_restarted_and_goes_on() {
    let mut server = PgServer::start().unwrap();
    migrate(server.url()).await.unwrap();
    let store = PgStore::connect(patient(&server.url())).await.unwrap();
    let inbox = Inbox::new(&store).unwrap();
    let brokers = Brokers::default();
    let relay = tokio::spawn(inbox.relay(brokers.clone(), pending()));
    for key in ["a", "b", "c"] {
        let sql = format!("SELECT campanile.publish('bills', '{key}', NULL, NULL, '{{}}', '{{}}')");
        server.psql(&sql).unwrap();
        // The message is written without this process, so nothing notifies the relay.
        brokers.wait_until(|brokers| brokers.of(key).len() == 1).await;
        server.kill().unwrap();
        server.restart().unwrap();
    }
    relay.abort();
}
