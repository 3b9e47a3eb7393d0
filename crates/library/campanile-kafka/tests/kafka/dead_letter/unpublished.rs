//! While a dead letter cannot be published, nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, DecodeLayer, Request, key};
use campanile_idempotency::policy::OnLost;
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer};
use campanile_kafka::DeadLetter;
use campanile_test::faults::Fault;
use campanile_test::{Message, MockKafka};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tower::ServiceBuilder;

use super::{
    DEAD, TTL, bytes, dead_lettering, header, kafka, letters, payloads, produce, set_unknown,
    single_attempt, store, with_short_timeout,
};
use crate::give_up::{FAILS, GOOD, LAST, Outcomes, keeper, service};
use crate::support::{committed, consumer, serve, until, until_committed};

/// Creates a policy with the default budget, and a counter of the publications begun since startup.
fn counting_publications(topic: &'static str) -> (DeadLetter, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let started = AtomicBool::new(false);
    let letters_to = DeadLetter::by_topic(move |_| {
        // The first call is the check at startup.
        if started.swap(true, Ordering::SeqCst) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        topic.to_owned()
    });
    (letters_to, begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_dead_letter_topic_holds_the_offset() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 2).unwrap();
    kafka.create_topic(DEAD, 1).unwrap();
    let to = |partition: i32, payload: &str| {
        kafka
            .producer()
            .produce(Message::to("orders").partition(partition).payload(payload))
            .unwrap()
    };
    to(0, GOOD);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let serving =
        serve(with_short_timeout(config.clone()), service(&keeper, 1, &Outcomes::default()));
    until("the first record is committed", || committed(&config, "orders", 2)[0] == Some(1)).await;
    set_unknown(&kafka, DEAD, true);
    for payload in [FAILS, "no json", LAST] {
        to(0, payload);
    }
    for n in 0..20 {
        to(1, &format!(r#"{{"id":"good-{n}"}}"#));
    }
    // The budget of the last attempt, and those of three give-ups, none of which was a crash.
    until("four budgets are used up", || store.count("fail") >= 4).await;
    until_committed(&config, "orders", &[1, 20]).await;
    assert_eq!(store.count("give_up"), 0);

    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[4, 20]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (22, 2));
    let letters = letters(&config);
    assert_eq!(payloads(&letters), [Some(FAILS), Some("no json")]);
    assert_eq!(header(&letters[0], "campanile-attempts"), "1", "the wait counts no attempt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_without_a_lock_is_held_too() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let serving =
        serve(with_short_timeout(config.clone()), service(&keeper(), 1, &Outcomes::default()));
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &["no json", LAST]);
    // Longer than a publication may take.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[3]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
    assert_eq!(payloads(&letters(&config)), [Some("no json")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_publication_is_retried_within_the_budget() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    kafka.cluster().request_errors(RDKafkaApiKey::Produce, &[forbidden; 3]);
    let (store, keeper) = store();
    let consumer = consumer(config.clone(), "orders").on_give_up(DeadLetter::topic(DEAD));
    let serving = serve(consumer, single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
    assert_eq!((letters(&config).len(), store.count("fail"), store.count("acquire")), (1, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_letter_is_published_without_payload() {
    for by_the_broker in [false, true] {
        let large = format!(r#"{{"id":"b","fails":true,"note":"{}"}}"#, "x".repeat(10_000));
        let kafka = kafka(&[&large, LAST]);
        let config = kafka.consumer_config("g");
        let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        let mut letters_to = DeadLetter::topic(DEAD);
        if by_the_broker {
            kafka.cluster().request_errors(RDKafkaApiKey::Produce, &[too_large]);
        } else {
            letters_to = letters_to.set("message.max.bytes", "9000");
        }
        let (store, keeper) = store();
        let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
        let serving = serve(consumer, single_attempt(&keeper, TTL));
        until_committed(&config, "orders", &[2]).await;
        serving.stop().await.unwrap();
        let letters = letters(&config);
        assert_eq!(payloads(&letters), [None]);
        let length = header(&letters[0], "campanile-truncated-payload-bytes");
        assert_eq!(length, large.len().to_string());
        assert_eq!(header(&letters[0], "campanile-key"), "b");
        assert_eq!(bytes(&letters[0], "kafka_dlt-original-offset"), Some(vec![0; 8]));
        assert_eq!((store.count("fail"), store.count("give_up")), (0, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_timestamp_holds_the_record() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP;
    kafka.cluster().request_errors(RDKafkaApiKey::Produce, &[refused]);
    let consumer = consumer(config.clone(), "orders").on_give_up(DeadLetter::topic(DEAD));
    let (store, keeper) = store();
    let serving = serve(consumer, single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
    assert_eq!(payloads(&letters(&config)), [Some(FAILS)]);
    // The first publication failed, and the second one followed.
    assert_eq!((store.count("fail"), store.count("give_up")), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_during_a_publication_loses_nothing() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let outcomes = Outcomes::default();
    let (letters_to, begun) = counting_publications(DEAD);
    let with_short_drain = consumer(config.clone(), "orders")
        .on_give_up(letters_to)
        .with_drain_timeout(Duration::from_millis(50));
    let serving = serve(with_short_drain, service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &[FAILS, LAST]);
    until("publication of the letter begins", || begun.load(Ordering::SeqCst) == 1).await;
    let summary = serving.stop().await.unwrap();
    assert!(summary.dead_lettered == 0 && summary.unfinished >= 1, "{summary:?}");
    // The lock is not left to expire.
    assert_eq!((store.count("fail"), store.count("give_up")), (1, 0));
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);

    set_unknown(&kafka, DEAD, false);
    let serving = serve(dead_lettering(config.clone()), service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[3]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
    // A publication that was in flight at the shutdown may have succeeded as well.
    let letters = letters(&config);
    assert!(!letters.is_empty());
    assert!(payloads(&letters).iter().all(|payload| *payload == Some(FAILS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoke_during_a_publication_hands_the_letter_over() {
    let kafka = kafka(&[GOOD]);
    let mut config = kafka.consumer_config("g");
    // With this strategy, every rebalance revokes the partition.
    config.set("partition.assignment.strategy", "range");
    let (store, keeper) = store();
    let outcomes = Outcomes::default();
    // Each consumer has its own topic, since startup fails if a topic is unavailable.
    kafka.create_topic("others.dead", 1).unwrap();
    let with_short_drain = |letters_to: DeadLetter| {
        consumer(config.clone(), "orders")
            .on_give_up(letters_to)
            .with_drain_timeout(Duration::from_millis(50))
    };
    let (letters_to, begun) = counting_publications(DEAD);
    let one = serve(with_short_drain(letters_to), service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &[FAILS, LAST]);
    until("publication of the letter begins", || begun.load(Ordering::SeqCst) == 1).await;
    let other =
        serve(with_short_drain(DeadLetter::topic("others.dead")), service(&keeper, 1, &outcomes));
    until("the revoke releases the lock", || store.count("fail") == 1).await;
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[3]).await;
    let (one, other) = (one.stop().await.unwrap(), other.stop().await.unwrap());
    assert_eq!(one.dead_lettered + other.dead_lettered, 1);
    assert!(one.revoked >= 1, "{one:?}");
    // A publication that was in flight when the first consumer was interrupted may have succeeded
    // as well.
    let mut all = letters(&config);
    all.extend(super::letters_in(&config, "others.dead"));
    assert!(!all.is_empty());
    assert!(payloads(&all).iter().all(|payload| *payload == Some(FAILS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_lost_during_a_publication_commits_nothing() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let (letters_to, begun) = counting_publications(DEAD);
    let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
    let serving = serve(consumer, single_attempt(&keeper, Duration::from_secs(5)));
    until_committed(&config, "orders", &[1]).await;
    set_unknown(&kafka, DEAD, true);
    produce(&kafka, &[FAILS]);
    until("publication of the letter begins", || begun.load(Ordering::SeqCst) == 1).await;
    store.inject_always_of("renew", Fault::Refuse);
    until("the publication is retried", || store.count("acquire") > 2).await;
    // The lock of the next publication must not be lost as well.
    store.heal();
    assert_eq!(store.count("give_up"), 0);
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);

    set_unknown(&kafka, DEAD, false);
    until_committed(&config, "orders", &[2]).await;
    let summary = serving.stop().await.unwrap();
    assert!(summary.inconclusive >= 1, "{summary:?}");
    assert_eq!(summary.dead_lettered, 1);
    let letters = letters(&config);
    // A publication that was in flight when the lock was lost may have succeeded as well.
    assert!(!letters.is_empty());
    assert!(payloads(&letters).iter().all(|payload| *payload == Some(FAILS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_after_a_lost_lock_is_not_published_under_it() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let (store, keeper) = store();
    let layer = IdempotencyLayer::new(
        &keeper,
        IdempotencyConfig::new("orders").with_max_attempts(1).with_lock_ttl(Duration::from_secs(4)),
        key::coordinates(),
    )
    .unwrap()
    .on_lost(OnLost::Notify);
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = attempts.clone();
    let service = ServiceBuilder::new().layer(DecodeLayer::raw()).layer(layer).service_fn(
        move |r: Request| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                r.lock().unwrap().lost().await;
                Err::<(), _>(BoxError::from("gateway is busy"))
            }
        },
    );
    store.inject_always_of("renew", Fault::Refuse);
    let serving = serve(dead_lettering(config.clone()), service);
    until("the attempt has ended", || store.count("acquire") > 1).await;
    store.heal();
    until_committed(&config, "orders", &[1]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, attempts.load(Ordering::SeqCst)), (1, 1));
    let letters = letters(&config);
    let give_ups: Vec<_> = letters.iter().map(|l| header(l, "campanile-give-ups")).collect();
    assert_eq!(give_ups, ["1"], "published under the giving_up's lock only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_too_large_without_payload_holds_its_offset() {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    let key = vec![b'k'; 1000];
    let message = Message::to("orders").partition(0).key(key).payload(FAILS);
    kafka.producer().produce(message).unwrap();
    let (store, keeper) = store();
    let letters_to = DeadLetter::topic(DEAD).set("message.max.bytes", "1000");
    let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
    let serving = serve(consumer, single_attempt(&keeper, TTL));
    // The lock of the last attempt, and that of a give-up.
    until("the publication fails twice", || store.count("fail") >= 2).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, summary.unfinished), (0, 1));
    assert_eq!((store.count("give_up"), letters(&config).len()), (0, 0));
    assert_eq!(committed(&config, "orders", 1), [None]);
}
