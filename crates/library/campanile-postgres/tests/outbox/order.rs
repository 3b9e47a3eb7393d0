//! Messages of a key are published one after the other, in order, whatever happens to other keys.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Output, Request};
use tokio::sync::Notify;
use tower::service_fn;

use crate::fixture::{Fixture, bill, publish};

fn numbers(to: usize) -> Vec<String> {
    (0..to).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn refused_message_blocks_only_its_own_key() {
    let fixture = Fixture::new().await;
    fixture.brokers.refuse("a");
    let relay = fixture.relay();
    for number in 0..20 {
        let outputs = ["a", "b", "c"].map(|key| bill(key, number));
        fixture.publish(&format!("b-{number}"), outputs).await;
    }
    fixture
        .brokers
        .wait_until(|brokers| brokers.payloads_of("c").len() + brokers.payloads_of("b").len() == 40)
        .await;
    // Each with its own time limit, because the pause between two refusals grows to 30 s.
    for _ in 0..3 {
        let refused = fixture.brokers.refused();
        fixture.brokers.wait_until(|brokers| brokers.refused() > refused).await;
    }
    fixture.brokers.accept("a");
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == 20).await;
    for key in ["a", "b", "c"] {
        assert_eq!(fixture.brokers.payloads_of(key), numbers(20), "{key}");
    }
    fixture.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn keys_are_published_concurrently_and_each_in_order() {
    let fixture = Fixture::new().await;
    for number in 0..10 {
        let outputs = (0..40).map(|key| bill(&format!("k{key}"), number));
        fixture.publish(&format!("b-{number}"), outputs).await;
    }
    let relay = fixture.relay();
    fixture.wait_until_empty().await;
    for key in 0..40 {
        assert_eq!(fixture.brokers.payloads_of(&format!("k{key}")), numbers(10), "k{key}");
    }
    assert!(fixture.brokers.max_in_flight() > 10, "{}", fixture.brokers.max_in_flight());
    relay.stop().await;
}

#[tokio::test]
async fn messages_of_a_key_follow_the_commit_order() {
    let fixture = Fixture::new().await;
    let relay = fixture.relay();
    let (written, resume) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (handler_written, handler_resume) = (written.clone(), resume.clone());
    let slow = service_fn(move |request: Request<()>| {
        let (written, resume) = (handler_written.clone(), handler_resume.clone());
        async move {
            publish(&request, vec![bill("a", "first")]).await?;
            written.notify_one();
            resume.notified().await;
            Ok::<_, BoxError>(())
        }
    });
    let second = async {
        written.notified().await;
        fixture.publish("b-2", [bill("a", "second")]).await;
    };
    let others = async {
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
                     AND wait_event_type = 'Lock' AND wait_event = 'advisory'";
        fixture.database.wait_for(waits).await;
        // A message of another key waits for neither.
        fixture.publish("b-3", [bill("b", "third")]).await;
        fixture.brokers.wait_until(|brokers| !brokers.payloads_of("b").is_empty()).await;
        assert!(fixture.brokers.payloads_of("a").is_empty());
        resume.notify_one();
    };
    let (first, (), ()) = tokio::join!(fixture.run(slow, "b-1"), second, others);
    assert_eq!(first.unwrap(), Outcome::Processed(()));
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == 2).await;
    assert_eq!(fixture.brokers.payloads_of("a"), ["first", "second"]);
    relay.stop().await;
}

#[tokio::test]
async fn transactions_writing_two_keys_crosswise_both_commit() {
    let fixture = Fixture::new().await;
    let handler = |keys: [&'static str; 2]| {
        service_fn(move |request: Request<()>| async move {
            publish(&request, vec![bill(keys[0], 1)]).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            publish(&request, vec![bill(keys[1], 2)]).await
        })
    };
    let (one, other) = tokio::join!(
        fixture.run(handler(["a", "b"]), "b-1"),
        fixture.run(handler(["b", "a"]), "b-2")
    );
    assert_eq!((one.unwrap(), other.unwrap()), (Outcome::Processed(()), Outcome::Processed(())));
    assert_eq!(fixture.count_messages(), 4);
}

#[tokio::test]
async fn blocked_key_with_many_messages_leaves_room_for_others() {
    let fixture = Fixture::new().await;
    fixture.brokers.hold("a");
    fixture.publish("b-1", (0..600).map(|number| bill("a", number))).await;
    fixture.publish("b-2", (0..5).map(|number| bill("b", number))).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("b").len() == 5).await;
    assert!(fixture.brokers.payloads_of("a").is_empty());
    fixture.brokers.resume("a");
    fixture.wait_until_empty().await;
    assert_eq!(
        (fixture.brokers.payloads_of("a"), fixture.brokers.payloads_of("b")),
        (numbers(600), numbers(5))
    );
    relay.stop().await;
}

#[tokio::test]
async fn keyless_messages_wait_for_no_other() {
    let fixture = Fixture::new().await;
    fixture.brokers.refuse("missing");
    fixture.publish("b-1", [Output::to("missing"), Output::to("bills"), Output::to("bills")]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("").len() == 2).await;
    relay.stop().await;
    assert_eq!(fixture.count_messages(), 1);
}

#[tokio::test]
async fn topic_refusing_every_message_blocks_no_other() {
    let fixture = Fixture::new().await;
    fixture.brokers.refuse("missing");
    let missing = |number: usize| Output::to("missing").key(format!("k{number}")).payload("1");
    fixture.publish("b-1", (0..1500).map(missing)).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.refused() > 5).await;
    fixture.publish("b-2", (0..5).map(|number| bill("a", number))).await;
    fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == 5).await;
    assert_eq!(fixture.brokers.payloads_of("a"), numbers(5));
    fixture.brokers.accept("missing");
    fixture.wait_until_empty().await;
    assert_eq!(fixture.brokers.published().len(), 1505);
    relay.stop().await;
}

#[tokio::test]
async fn slowly_refusing_topic_blocks_no_other_in_any_session() {
    let fixture = Fixture::new().await;
    fixture.brokers.hold("missing");
    let missing = |number: usize| Output::to("missing").key(format!("k{number}")).payload("1");
    fixture.publish("b-1", (0..1500).map(missing)).await;
    let relay = fixture.relay();
    for session in 0..3 {
        fixture.publish(&format!("c-{session}"), (0..5).map(|number| bill("a", number))).await;
        let all = 5 * (session + 1);
        fixture.brokers.wait_until(|brokers| brokers.payloads_of("a").len() == all).await;
        let in_flight = fixture.brokers.in_flight();
        assert!(in_flight <= 5, "more than four of the topic and one of the other: {in_flight}");
        fixture.terminate_leader();
    }
    fixture.brokers.resume("missing");
    fixture.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn topic_with_refused_first_keys_publishes_the_others() {
    let fixture = Fixture::new().await;
    let keys = ["k0", "k1", "k2", "k3"];
    keys.iter().for_each(|key| fixture.brokers.refuse(key));
    fixture.publish("b-1", keys.iter().map(|key| bill(key, 0))).await;
    fixture.publish("b-2", (0..200).map(|number| bill(&format!("a{number}"), number))).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.published().len() == 200).await;
    fixture.database.wait_for("SELECT count(*) = 4 FROM campanile.outbox").await;
    keys.iter().for_each(|key| fixture.brokers.accept(key));
    fixture.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn deleting_a_refused_message_unblocks_its_key() {
    let fixture = Fixture::new().await;
    fixture.brokers.refuse("a");
    fixture.publish("b-1", [bill("a", "poison"), bill("a", "next")]).await;
    let relay = fixture.relay();
    fixture.brokers.wait_until(|brokers| brokers.refused() > 1).await;
    let poison = "DELETE FROM campanile.outbox WHERE payload = 'poison'";
    fixture.database.psql(poison);
    fixture.brokers.accept("a");
    fixture.wait_until_empty().await;
    relay.stop().await;
    // A message that was in flight at the deletion may still have been published.
    assert_eq!(fixture.brokers.payloads_of("a").pop().unwrap(), "next");
}
