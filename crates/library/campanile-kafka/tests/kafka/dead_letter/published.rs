//! A dead letter contains its record, the record's origin and the cause of its failure, and it is
//! published before anything is committed.

use std::sync::atomic::{AtomicBool, Ordering};

use campanile_core::{BoxError, DecodeLayer, Record, Request, error, key};
use campanile_idempotency::{IdempotencyLayer, LockKeeper, MemoryStore};
use campanile_kafka::DeadLetter;
use campanile_test::faults::{Fault, FaultyStore};
use campanile_test::{Message, MockKafka};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _};
use tower::{ServiceBuilder, service_fn};

use super::{
    DEAD, bytes, dead_lettering, header, kafka, letters, payloads, produce, set_unknown,
    with_short_timeout,
};
use crate::give_up::{FAILS, GOOD, LAST, Order, Outcomes, PERMANENT, keeper, service};
use crate::records::produce_header;
use crate::support::{TIMEOUT, committed, consumer, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_precedes_failed_entry_and_commit() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let outcomes = Outcomes::default();
    let serving = serve(with_short_timeout(config.clone()), service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[1]).await;

    set_unknown(&kafka, DEAD, true);
    store.inject_next_of("give_up", Fault::Hang);
    produce(&kafka, &[FAILS, FAILS, LAST]);
    // The attempt is recorded because the letter could not be published.
    until("the lock is released", || store.count("fail") >= 1).await;
    assert_eq!(store.count("give_up"), 0, "given up before the letter is published");

    set_unknown(&kafka, DEAD, false);
    until("the entry is being given up", || store.count("give_up") == 1).await;
    assert_eq!(letters(&config).len(), 1);
    assert_eq!(committed(&config, "orders", 1), [Some(1)], "committed before the key is FAILED");

    store.release();
    until_committed(&config, "orders", &[4]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(letters(&config).len(), 1);
    assert_eq!((summary.received, summary.processed, summary.dead_lettered), (4, 3, 1));
    assert_eq!(store.count("give_up"), 1);
    let outcomes_seen = outcomes.lock().unwrap().clone();
    assert_eq!(outcomes_seen, [(0, "processed"), (2, "given_up"), (3, "processed")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untriable_records_are_dead_lettered_without_a_lock() {
    let bad = ["no json", r#"{"id":""}"#];
    let kafka = kafka(&[GOOD, bad[0], bad[1], PERMANENT, LAST]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let serving = serve(dead_lettering(config.clone()), service(&keeper, 3, &Outcomes::default()));
    until_committed(&config, "orders", &[5]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered, summary.skipped), (2, 3, 0));
    let letters = letters(&config);
    assert_eq!(payloads(&letters), [Some(bad[0]), Some(bad[1]), Some(PERMANENT)]);
    let causes: Vec<_> = letters.iter().map(|letter| header(letter, "campanile-cause")).collect();
    assert_eq!(causes, ["undecodable", "missing-key", "failed"]);
    let tokens: Vec<_> = letters.iter().map(|l| bytes(l, "campanile-token").is_some()).collect();
    assert_eq!(tokens, [false, false, true]);
    assert_eq!(store.count("give_up"), 1);
    assert_eq!(store.count("acquire"), 3, "for the good records and for the failed one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_key_with_other_payload_is_dead_lettered() {
    let kafka = kafka(&[GOOD, r#"{"id":"a","fails":true}"#, GOOD]);
    let config = kafka.consumer_config("g");
    let key = key::field(|o: &Order| &o.id).fingerprint_by(|r: &Request<Order>, hasher| {
        hasher.update([r.body().fails.into()]);
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), "orders", key).unwrap();
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(layer)
        .service_fn(async |_: Request<Order>| Ok::<_, BoxError>(()));
    let serving = serve(dead_lettering(config.clone()), service);
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (2, 1));
    let letters = letters(&config);
    assert_eq!(header(&letters[0], "campanile-cause"), "mismatch");
    assert_eq!(header(&letters[0], "campanile-key"), "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_has_the_exact_position_of_its_record() {
    let kafka = MockKafka::start(1).unwrap();
    kafka.create_topic("orders", 4).unwrap();
    kafka.create_topic(DEAD, 1).unwrap();
    let config = kafka.consumer_config("billing");
    // Partition 2, offset 5: no two of the numbers are equal.
    let message = |payload: &str| Message::to("orders").partition(2).key("k").payload(payload);
    let good = (0..5).map(|n| message(&format!(r#"{{"id":"good-{n}"}}"#)));
    kafka.producer().produce_all(good.chain([message(FAILS)])).unwrap();
    let letters_to = DeadLetter::topic(DEAD);
    let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
    let serving = serve(consumer, service(&keeper(), 3, &Outcomes::default()));
    until("the letter is published", || letters(&config).len() == 1).await;
    serving.stop().await.unwrap();
    assert_eq!(committed(&config, "orders", 4)[2], Some(6));
    let letter = &letters(&config)[0];
    for (name, value) in [
        ("kafka_dlt-original-topic", b"orders".to_vec()),
        ("kafka_dlt-original-partition", 2_i32.to_be_bytes().to_vec()),
        ("kafka_dlt-original-offset", 5_i64.to_be_bytes().to_vec()),
        ("kafka_dlt-original-consumer-group", b"billing".to_vec()),
        ("campanile-cause", b"failed".to_vec()),
        ("campanile-key", b"b".to_vec()),
        ("campanile-attempts", b"3".to_vec()),
    ] {
        assert_eq!(bytes(letter, name), Some(value), "{name}");
    }
    let message = header(letter, "kafka_dlt-exception-message");
    assert!(message.contains("gateway is busy"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_preserves_key_payload_headers_and_timestamp() {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap();
    let long_ago = 1_234_567_890_123;
    let headers = OwnedHeaders::new()
        .insert(Header { key: "a", value: Some("1") })
        .insert(Header::<&str> { key: "b", value: None })
        .insert(Header { key: "a", value: Some("") })
        .insert(Header { key: "", value: Some(&[0xff_u8, 0][..]) });
    let record = BaseRecord::to("orders").partition(0).timestamp(long_ago);
    producer.send(record.key(&[0_u8, 0xff][..]).payload(&[0xff_u8][..]).headers(headers)).unwrap();
    // A tombstone, and an empty payload, which is not a tombstone.
    producer.send(BaseRecord::<[u8], [u8]>::to("orders").partition(0).key(b"k")).unwrap();
    producer.send(BaseRecord::<[u8], [u8]>::to("orders").partition(0).payload(b"")).unwrap();
    produce_header(&producer, b"caf\xe9", b"latin").unwrap();
    // librdkafka's consumer ends a name at its first NUL, and its producer accepts no time before
    // 1970.
    let headers = OwnedHeaders::new().insert(Header { key: "one\0two", value: Some("3") });
    let record = BaseRecord::<[u8], [u8]>::to("orders").partition(0).headers(headers);
    producer.send(record.timestamp(-1_500)).unwrap();
    producer.flush(TIMEOUT).unwrap();

    let service = service_fn(async |_: Record| Err::<(), _>(BoxError::from(error::permanent("x"))));
    let serving = serve(dead_lettering(config.clone()), service);
    until_committed(&config, "orders", &[5]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 5);
    let letters = letters(&config);
    let parts: Vec<_> = letters.iter().map(|letter| (letter.key(), letter.payload())).collect();
    let part = |bytes: &'static [u8]| Some(bytes);
    let expected =
        [(part(&[0, 0xff]), part(&[0xff])), (part(b"k"), None), (None, part(b"")), (None, None)];
    assert_eq!(parts[..4], expected);
    let original = bytes(&letters[0], "kafka_dlt-original-timestamp");
    assert_eq!(original, Some(long_ago.to_be_bytes().to_vec()));
    let own = |n: usize| -> Vec<(String, Option<Vec<u8>>)> {
        let headers = letters[n].headers().unwrap().iter();
        let all = headers.map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)));
        all.filter(|(name, _)| !name.contains("kafka_dlt") && !name.contains("campanile")).collect()
    };
    let value = |value: &[u8]| Some(value.to_vec());
    let expected = [
        ("a".to_owned(), value(b"1")),
        ("b".to_owned(), None),
        ("a".to_owned(), value(b"")),
        (String::new(), value(&[0xff, 0])),
    ];
    assert_eq!(own(0), expected);
    assert_eq!(own(3), [("caf\u{fffd}".to_owned(), value(b"latin"))]);
    assert_eq!(own(4), [("one".to_owned(), value(b"3"))]);
    let original = bytes(&letters[4], "kafka_dlt-original-timestamp");
    assert_eq!(original, Some((-1_500_i64).to_be_bytes().to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_preserves_ten_thousand_headers() {
    let kafka = kafka(&[]);
    let config = kafka.consumer_config("g");
    let message = Message::to("orders").partition(0).payload("no json");
    let message = (0..10_000_u32).fold(message, |m, n| m.header("n", n.to_be_bytes()));
    kafka.producer().produce(message).unwrap();
    let serving =
        serve(dead_lettering(config.clone()), service(&keeper(), 1, &Outcomes::default()));
    until_committed(&config, "orders", &[1]).await;
    serving.stop().await.unwrap();
    let letters = letters(&config);
    let headers = letters[0].headers().unwrap();
    let own = (0..10_000).map(|n| headers.get(n));
    assert!(own.enumerate().all(|(n, h)| h.value == Some(&(n as u32).to_be_bytes()[..])));
    assert_eq!(header(&letters[0], "campanile-cause"), "undecodable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_the_topic_chosen_for_their_source() {
    let kafka = kafka(&[PERMANENT]);
    kafka.create_topic("payments", 1).unwrap();
    kafka.create_topic("payments.dead", 1).unwrap();
    let payment = Message::to("payments").partition(0).payload(FAILS);
    kafka.producer().produce(payment).unwrap();
    let config = kafka.consumer_config("g");
    let consumer = consumer(config.clone(), "orders")
        .subscribe(["payments"])
        .on_give_up(DeadLetter::by_topic(|topic| format!("{topic}.dead")));
    let serving = serve(consumer, service(&keeper(), 1, &Outcomes::default()));
    until_committed(&config, "orders", &[1]).await;
    until_committed(&config, "payments", &[1]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 2);
    assert_eq!(payloads(&letters(&config)), [Some(PERMANENT)]);
    assert_eq!(payloads(&super::letters_in(&config, "payments.dead")), [Some(FAILS)]);
}

/// Panics when it is displayed and when it is asked for its source.
#[derive(Debug)]
struct PanickingError;

impl std::fmt::Display for PanickingError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("injected panic")
    }
}

impl std::error::Error for PanickingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        panic!("injected panic")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_error_display_does_not_stop_the_consumer() {
    let kafka = kafka(&["bad", "retry", "good"]);
    let config = kafka.consumer_config("g");
    let retried = std::sync::Arc::new(AtomicBool::new(false));
    let service = service_fn(move |record: Record| {
        let result = match &record.payload().unwrap()[..] {
            b"bad" => Err(BoxError::from(error::permanent(PanickingError))),
            b"retry" if !retried.swap(true, Ordering::SeqCst) => {
                Err(BoxError::from(PanickingError))
            }
            _ => Ok(()),
        };
        async { result }
    });
    let serving = serve(dead_lettering(config.clone()), service);
    until_committed(&config, "orders", &[3]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, summary.retried, summary.processed), (1, 1, 2));
    let letters = letters(&config);
    assert_eq!(payloads(&letters), [Some("bad")]);
    let message = header(&letters[0], "kafka_dlt-exception-message");
    assert_eq!(message, "permanent error: (formatting the error panicked)");
}
