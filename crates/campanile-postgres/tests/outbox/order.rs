//! Messages of a key are published one after the other, in order, whatever happens to other keys.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{BoxError, Outcome, Output, Request};
use tokio::sync::Notify;
use tower::service_fn;

use crate::world::{World, bill, publish};

fn numbers(to: usize) -> Vec<String> {
    (0..to).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn a_message_that_is_refused_holds_up_those_of_its_key_and_no_others() {
    let world = World::new().await;
    world.brokers.refuse("a");
    let relay = world.relay();
    for number in 0..20 {
        let outputs = ["a", "b", "c"].map(|key| bill(key, number));
        world.publish(&format!("b-{number}"), outputs).await;
    }
    world.brokers.wait_until(|brokers| brokers.of("c").len() + brokers.of("b").len() == 40).await;
    let refused = world.brokers.refused();
    world.brokers.wait_until(|brokers| brokers.refused() > refused + 2).await;
    world.brokers.accept("a");
    world.brokers.wait_until(|brokers| brokers.of("a").len() == 20).await;
    for key in ["a", "b", "c"] {
        assert_eq!(world.brokers.of(key), numbers(20), "{key}");
    }
    world.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn keys_are_published_side_by_side_and_each_in_its_order() {
    let world = World::new().await;
    for number in 0..10 {
        let outputs = (0..40).map(|key| bill(&format!("k{key}"), number));
        world.publish(&format!("b-{number}"), outputs).await;
    }
    let relay = world.relay();
    world.wait_until_empty().await;
    for key in 0..40 {
        assert_eq!(world.brokers.of(&format!("k{key}")), numbers(10), "k{key}");
    }
    assert!(world.brokers.most_at_work() > 10, "{}", world.brokers.most_at_work());
    relay.stop().await;
}

#[tokio::test]
async fn messages_of_a_key_have_the_order_in_which_their_transactions_are_committed() {
    let world = World::new().await;
    let relay = world.relay();
    let (written, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, told_to) = (written.clone(), go_on.clone());
    let slow = service_fn(move |request: Request<()>| {
        let (written, go_on) = (told.clone(), told_to.clone());
        async move {
            publish(&request, vec![bill("a", "first")]).await?;
            written.notify_one();
            go_on.notified().await;
            Ok::<_, BoxError>(())
        }
    });
    let second = async {
        written.notified().await;
        world.publish("b-2", [bill("a", "second")]).await;
    };
    let others = async {
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
                     AND wait_event_type = 'Lock' AND wait_event = 'advisory'";
        world.wait_for(waits).await;
        // A message of another key waits for neither.
        world.publish("b-3", [bill("b", "third")]).await;
        world.brokers.wait_until(|brokers| !brokers.of("b").is_empty()).await;
        assert!(world.brokers.of("a").is_empty());
        go_on.notify_one();
    };
    let (first, (), ()) = tokio::join!(world.run(slow, "b-1"), second, others);
    assert_eq!(first.unwrap(), Outcome::Processed(()));
    world.brokers.wait_until(|brokers| brokers.of("a").len() == 2).await;
    assert_eq!(world.brokers.of("a"), ["first", "second"]);
    relay.stop().await;
}

#[tokio::test]
async fn transactions_that_write_for_two_keys_crosswise_are_both_committed() {
    let world = World::new().await;
    let handler = |keys: [&'static str; 2]| {
        service_fn(move |request: Request<()>| async move {
            publish(&request, vec![bill(keys[0], 1)]).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            publish(&request, vec![bill(keys[1], 2)]).await
        })
    };
    let (one, other) =
        tokio::join!(world.run(handler(["a", "b"]), "b-1"), world.run(handler(["b", "a"]), "b-2"));
    assert_eq!((one.unwrap(), other.unwrap()), (Outcome::Processed(()), Outcome::Processed(())));
    assert_eq!(world.left(), 4);
}

#[tokio::test]
async fn a_key_with_many_messages_that_is_held_up_leaves_room_for_others() {
    let world = World::new().await;
    world.brokers.hold("a");
    world.publish("b-1", (0..600).map(|number| bill("a", number))).await;
    world.publish("b-2", (0..5).map(|number| bill("b", number))).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.of("b").len() == 5).await;
    assert!(world.brokers.of("a").is_empty());
    world.brokers.go_on("a");
    world.wait_until_empty().await;
    assert_eq!((world.brokers.of("a"), world.brokers.of("b")), (numbers(600), numbers(5)));
    relay.stop().await;
}

#[tokio::test]
async fn messages_without_a_key_wait_for_no_other() {
    let world = World::new().await;
    world.brokers.refuse("missing");
    world.publish("b-1", [Output::to("missing"), Output::to("bills"), Output::to("bills")]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.of("").len() == 2).await;
    relay.stop().await;
    assert_eq!(world.left(), 1);
}

#[tokio::test]
async fn a_topic_that_refuses_whatever_it_is_given_holds_up_no_other() {
    let world = World::new().await;
    world.brokers.refuse("missing");
    let missing = |number: usize| Output::to("missing").key(format!("k{number}")).payload("1");
    world.publish("b-1", (0..1500).map(missing)).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.refused() > 5).await;
    world.publish("b-2", (0..5).map(|number| bill("a", number))).await;
    world.brokers.wait_until(|brokers| brokers.of("a").len() == 5).await;
    assert_eq!(world.brokers.of("a"), numbers(5));
    world.brokers.accept("missing");
    world.wait_until_empty().await;
    assert_eq!(world.brokers.published().len(), 1505);
    relay.stop().await;
}

#[tokio::test]
async fn a_topic_that_takes_long_to_refuse_holds_up_no_other_over_whichever_session() {
    let world = World::new().await;
    world.brokers.hold("missing");
    let missing = |number: usize| Output::to("missing").key(format!("k{number}")).payload("1");
    world.publish("b-1", (0..1500).map(missing)).await;
    let relay = world.relay();
    for session in 0..3 {
        world.publish(&format!("c-{session}"), (0..5).map(|number| bill("a", number))).await;
        let all = 5 * (session + 1);
        world.brokers.wait_until(|brokers| brokers.of("a").len() == all).await;
        let at_work = world.brokers.at_work();
        assert!(at_work <= 5, "more than four of the topic and one of the other: {at_work}");
        world.terminate_leader();
    }
    world.brokers.go_on("missing");
    world.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn a_topic_whose_first_keys_are_refused_goes_on_with_the_others() {
    let world = World::new().await;
    let keys = ["k0", "k1", "k2", "k3"];
    keys.iter().for_each(|key| world.brokers.refuse(key));
    world.publish("b-1", keys.iter().map(|key| bill(key, 0))).await;
    world.publish("b-2", (0..200).map(|number| bill(&format!("a{number}"), number))).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.published().len() == 200).await;
    world.wait_for("SELECT count(*) = 4 FROM campanile.outbox").await;
    keys.iter().for_each(|key| world.brokers.accept(key));
    world.wait_until_empty().await;
    relay.stop().await;
}

#[tokio::test]
async fn a_refused_message_that_somebody_deletes_lets_its_key_go_on() {
    let world = World::new().await;
    world.brokers.refuse("a");
    world.publish("b-1", [bill("a", "poison"), bill("a", "next")]).await;
    let relay = world.relay();
    world.brokers.wait_until(|brokers| brokers.refused() > 1).await;
    let poison = "DELETE FROM campanile.outbox WHERE payload = 'poison'";
    world.database.psql(poison);
    world.brokers.accept("a");
    world.wait_until_empty().await;
    relay.stop().await;
    // A message that was in flight at the deletion may still have been published.
    assert_eq!(world.brokers.of("a").pop().unwrap(), "next");
}
