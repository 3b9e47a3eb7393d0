//! Keys that used up their attempts in crashes, including crashes during their give-ups.

use std::time::Duration;

use campanile_core::{Command, Operation, Retention};
use campanile_idempotency::{LockKeeper, MemoryStore, Store};
use campanile_test::Message;
use campanile_test::faults::{Fault, FaultyStore};
use rdkafka::Message as _;

use super::{
    TTL, bytes, crash_owners, dead_lettering, header, kafka, letters, payloads, single_attempt,
};
use crate::give_up::{FAILS, GOOD};
use crate::support::{committed, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_in_the_last_attempt_is_dead_lettered() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let store = MemoryStore::new();
    crash_owners(&store, "b", 1).await;
    let keeper = LockKeeper::new(store).unwrap();
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[1]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
    let letters = letters(&config);
    assert_eq!(payloads(&letters), [Some(FAILS)]);
    assert_eq!(header(&letters[0], "campanile-cause"), "exhausted");
    assert_eq!(header(&letters[0], "campanile-attempts"), "1");
    assert_eq!(header(&letters[0], "campanile-give-ups"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_after_an_interrupted_give_up_has_no_payload() {
    for give_ups in [2, 4] {
        let kafka = kafka(&[FAILS]);
        let config = kafka.consumer_config("g");
        let store = MemoryStore::new();
        // The attempt and all give-ups but the last one.
        crash_owners(&store, "b", give_ups).await;
        let keeper = LockKeeper::new(store).unwrap();
        let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
        until_committed(&config, "orders", &[1]).await;
        assert_eq!(serving.stop().await.unwrap().dead_lettered, 1);
        let letters = letters(&config);
        assert_eq!(payloads(&letters), [None]);
        assert_eq!(header(&letters[0], "campanile-give-ups"), give_ups.to_string());
        let length = header(&letters[0], "campanile-truncated-payload-bytes");
        assert_eq!(length, FAILS.len().to_string());
        assert_eq!(bytes(&letters[0], "kafka_dlt-original-offset"), Some(vec![0; 8]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_give_ups_block_until_the_key_is_reopened() {
    let kafka = kafka(&[GOOD, FAILS, GOOD]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    crash_owners(&store, "b", 5).await;
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until("the lock is released", || store.count("release") == 1).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.unfinished), (1, 2));
    assert_eq!(letters(&config).len(), 0);
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);

    let released = store.commands().into_iter().find_map(|command| match command.operation {
        Operation::Release { grant, .. } => Some((command.key, grant.token)),
        _ => None,
    });
    let (key, token) = released.unwrap();
    let operation = Operation::Redrive { token, force: true };
    let reopen = Command { key, operation, retention: Retention::default() };
    store.apply(reopen).await.unwrap();
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[3]).await;
    serving.stop().await.unwrap();
    assert_eq!(payloads(&letters(&config)), [Some(FAILS)]);
}

/// This also holds for more give-ups than the counter can represent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_five_give_ups_publish_nothing() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    crash_owners(&store, "b", 300).await;
    let keeper = LockKeeper::new(store.clone()).unwrap();
    for round in 1..=3 {
        let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
        until("the lock is released", || store.count("release") == round).await;
        serving.stop().await.unwrap();
    }
    assert_eq!((letters(&config).len(), store.count("give_up")), (0, 0));
    assert_eq!(committed(&config, "orders", 1), [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_copies_share_key_and_origin_but_not_token() {
    let kafka = kafka(&[FAILS]);
    let config = kafka.consumer_config("g");
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    store.inject_always_of("give_up", Fault::Refuse);
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let crashing =
        serve(dead_lettering(config.clone()), single_attempt(&keeper, Duration::from_secs(4)));
    until("the letter is published but not recorded", || store.count("give_up") >= 1).await;
    // From now on, none of the keeper's commands takes effect in the store.
    store.inject_always(Fault::Refuse);
    crashing.drop().await;
    let keeper = LockKeeper::new(memory).unwrap();
    let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
    let letters = letters(&config);
    let [first, second] = &letters[..] else { panic!("{letters:?}") };
    for same in ["campanile-key", "kafka_dlt-original-topic"] {
        assert_eq!(header(first, same), header(second, same));
    }
    for same in ["kafka_dlt-original-partition", "kafka_dlt-original-offset"] {
        assert_eq!(bytes(first, same), bytes(second, same));
    }
    assert_ne!(header(first, "campanile-token"), header(second, "campanile-token"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_letter_omits_a_large_record_key() {
    for (length, kept) in [(16 * 1024, true), (16 * 1024 + 1, false)] {
        let kafka = kafka(&[]);
        let message = Message::to("orders").partition(0).key(vec![b'k'; length]).payload(FAILS);
        kafka.producer().produce(message).unwrap();
        let config = kafka.consumer_config("g");
        let store = MemoryStore::new();
        crash_owners(&store, "b", 2).await;
        let keeper = LockKeeper::new(store).unwrap();
        let serving = serve(dead_lettering(config.clone()), single_attempt(&keeper, TTL));
        until_committed(&config, "orders", &[1]).await;
        serving.stop().await.unwrap();
        let letters = letters(&config);
        assert_eq!(payloads(&letters), [None]);
        assert_eq!(letters[0].key().map(<[u8]>::len), kept.then_some(length));
    }
}
