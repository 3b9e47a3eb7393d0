//! Give-ups that end in an orderly release do not count as crashes, whichever process releases them:
//! the letter is published with its payload.

use campanile_kafka::{ConsumerError, DeadLetter, FloodLimit};
use campanile_test::{Message, MockKafka};

use super::{
    DEAD, TTL, dead_lettering, kafka, letters, payloads, produce, set_unknown, single_attempt,
    store, with_short_timeout,
};
use crate::give_up::{FAILS, GOOD};
use crate::support::{committed, consumer, serve, until, until_committed, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_before_the_policy_change_keep_the_payload() {
    for stops in [2, 6] {
        let kafka = kafka(&[FAILS, GOOD]);
        let config = kafka.consumer_config("g");
        let (store, keeper) = store();
        for _ in 0..stops {
            let stopped = serve(consumer(config.clone(), "orders"), single_attempt(&keeper, TTL));
            let error = stopped.ended().await.unwrap_err();
            assert!(matches!(error, ConsumerError::Stopped { .. }));
        }
        assert_eq!(store.count("fail") + store.count("release"), stops);
        let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
        until_committed(&config, "orders", &[2]).await;
        serving.stop().await.unwrap();
        assert_eq!(payloads(&letters(&config)), [Some(FAILS)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_topic_outage_keeps_the_payload() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let serving = serve(with_short_timeout(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &[FAILS, GOOD]);
    // The budgets of the last attempt and of two give-ups. As many interrupted give-ups would cost
    // the payload.
    until("three budgets are used up", || store.count("fail") >= 3).await;
    serving.stop().await.unwrap();
    set_unknown(&kafka, DEAD, false);
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[3]).await;
    serving.stop().await.unwrap();
    // A publication that was in flight when the topic became unavailable may have succeeded as
    // well.
    let letters = letters(&config);
    assert!(!letters.is_empty());
    assert!(payloads(&letters).iter().all(|payload| *payload == Some(FAILS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn give_ups_paused_by_a_flood_keep_the_payload() {
    let kafka = kafka(&[FAILS, GOOD]);
    let config = kafka.consumer_config("g");
    let (_, keeper) = store();
    for _ in 0..6 {
        let guarded = consumer(config.clone(), "orders")
            .on_give_up(DeadLetter::topic(DEAD).with_flood_limit(FloodLimit::new(0, 10)));
        let serving = serve(guarded, single_attempt(&keeper, TTL));
        assert!(within("the consumer pauses", serving.handle().wait_paused()).await.is_some());
        serving.stop().await.unwrap();
    }
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[2]).await;
    serving.stop().await.unwrap();
    assert_eq!(payloads(&letters(&config)), [Some(FAILS)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_in_several_partitions_has_one_complete_letter() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 3).unwrap();
    kafka.create_topic(DEAD, 1).unwrap();
    let to = |partition: i32, payload: &str| {
        let message = Message::to("orders").partition(partition).payload(payload);
        kafka.producer().produce(message).unwrap();
    };
    to(0, GOOD);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let serving = serve(with_short_timeout(config.clone()), single_attempt(&keeper, TTL));
    until("the first record is committed", || committed(&config, "orders", 3)[0] == Some(1)).await;
    set_unknown(&kafka, DEAD, true);
    (0..3).for_each(|partition| to(partition, FAILS));
    until("six budgets are used up", || store.count("fail") >= 6).await;
    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[2, 1, 1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(
        (summary.dead_lettered, summary.processed),
        (1, 3),
        "the other records are given up"
    );
    assert_eq!(payloads(&letters(&config)), [Some(FAILS)]);
}
