//! Messages of a key are published one after the other in their order, whatever others do.

use crate::world::{World, bill};

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
