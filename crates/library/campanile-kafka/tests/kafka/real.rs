//! Features that the mock cluster lacks: transactions, compaction, a broker that dies, the newer
//! consumer protocol, commits while members join, the maximum message size of a topic, a deleted topic.

use std::sync::LazyLock;
use std::time::Duration;

use campanile_core::{BoxError, Record, error};
use campanile_kafka::{DeadLetter, FloodLimit};
use campanile_test::{KafkaServer, Message, Proxy, eventually, free_port};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _};
use tower::{Service, service_fn};

use crate::dead_letter::{header, letters_in};
use crate::rebalance::slow;
use crate::support::{
    Log, TIMEOUT, committed, consumer, messages, serve, until, until_committed,
    until_committed_within,
};

/// A property of a broker that is not restarted, so that its leader epochs do not change on a busy machine:
/// librdkafka (2.12) fetches nothing from a topic that is recreated after that.
pub(crate) const NEVER_FENCED: (&str, &str) = ("broker.session.timeout.ms", "60000");

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
pub(crate) static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| {
    let (name, value) = NEVER_FENCED;
    let builder = KafkaServer::builder()
        .property(name, value)
        .property("log.cleaner.backoff.ms", "100")
        .property("log.initial.task.delay.ms", "100");
    builder.start().unwrap()
});

pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.unwrap()
}

/// Creates this topic on the shared server.
pub(crate) async fn topic(
    name: &'static str,
    partitions: i32,
    config: &'static [(&str, &str)],
) -> &'static KafkaServer {
    blocking(move || {
        KAFKA.create_topic(name, partitions, config).unwrap();
        &*KAFKA
    })
    .await
}

/// Starts a server with a second address, which leads through the proxy.
pub(crate) fn start_with_proxy() -> (KafkaServer, Proxy) {
    start_with_proxy_and(&[])
}

/// Starts the same with these properties.
pub(crate) fn start_with_proxy_and(properties: &[(&str, &str)]) -> (KafkaServer, Proxy) {
    let [first, second, controller] = [(); 3].map(|()| free_port().unwrap());
    let proxy = Proxy::to(("127.0.0.1", second)).unwrap();
    let at = |name: &str, port: u16| format!("{name}://127.0.0.1:{port}");
    let listeners = [at("PLAINTEXT", first), at("PROXY", second), at("CONTROLLER", controller)];
    let advertised = [at("PLAINTEXT", first), at("PROXY", proxy.addr().port())];
    let builder = properties
        .iter()
        .fold(KafkaServer::builder(), |builder, (name, value)| builder.property(name, value));
    let kafka = builder
        .port(first)
        .property("listeners", &listeners.join(","))
        .property("advertised.listeners", &advertised.join(","))
        .property("controller.quorum.voters", &format!("1@127.0.0.1:{controller}"))
        .property(
            "listener.security.protocol.map",
            "PLAINTEXT:PLAINTEXT,PROXY:PLAINTEXT,CONTROLLER:PLAINTEXT",
        )
        .start();
    (kafka.unwrap(), proxy)
}

/// A service that logs each record and succeeds.
pub(crate) fn logging(
    log: &Log,
) -> impl Service<Record, Response = (), Error = BoxError, Future: Send> + Clone + Send + use<> {
    let log = log.clone();
    service_fn(move |record: Record| {
        log.push(&record);
        async { Ok(()) }
    })
}

/// Two consumers share the records of a topic. The second one joins while the first one works. No
/// record may be lost or processed twice.
async fn two_consumers_share(config: &ClientConfig, topic: &'static str) {
    const PARTITIONS: usize = 4;
    // Records in each partition while the second consumer joins, and afterwards.
    let (before, after) = (400, 200);
    let produce = |records| {
        let all = messages(topic, PARTITIONS as i32, records);
        blocking(move || KAFKA.producer().produce_all(all).unwrap())
    };
    let (first, second) = (Log::default(), Log::default());
    produce(before).await;
    let one = serve(consumer(config.clone(), topic), slow(&first));
    first.reaches(PARTITIONS * before / 10).await;
    let other = serve(consumer(config.clone(), topic), slow(&second));
    let handle = other.handle();
    // On a busy machine, the first consumer may have finished its records by then.
    until("the second consumer has its share", || {
        handle.status().partitions.len() == PARTITIONS / 2
    })
    .await;
    produce(after).await;
    let (records, all) = ((before + after) as i64, PARTITIONS * (before + after));
    until("all records are handled", || first.len() + second.len() >= all).await;
    until_committed(config, topic, &[records; PARTITIONS]).await;
    let (one, other) = (one.stop().await.unwrap(), other.stop().await.unwrap());
    assert!(second.len() > all / 10, "the second consumer handled only {}", second.len());
    let mut seen = first.all();
    seen.extend(second.all());
    seen.sort_unstable();
    let expected: Vec<_> =
        (0..PARTITIONS as i32).flat_map(|p| (0..records).map(move |o| (p, o))).collect();
    assert!(seen == expected, "handled {} records, expected {}", seen.len(), expected.len());
    assert_eq!(one.processed + other.processed, all as u64);
    for summary in [one, other] {
        assert_eq!(summary.received, summary.processed + summary.revoked + summary.unfinished);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_consumers_share_a_topic_without_loss_or_duplicates() {
    for name in ["cooperative", "eager", "newer"] {
        let kafka = topic(name, 4, &[]).await;
        let mut config = kafka.consumer_config(name);
        config.set("session.timeout.ms", "10000");
        match name {
            "eager" => {
                config.set("partition.assignment.strategy", "range");
            }
            "newer" => {
                // The broker sets these in this protocol.
                config.remove("session.timeout.ms").remove("heartbeat.interval.ms");
                config.set("group.protocol", "consumer");
            }
            _ => {}
        }
        two_consumers_share(&config, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_member_is_ready_in_each_protocol() {
    for (name, protocol) in [("spare.classic", "classic"), ("spare.newer", "consumer")] {
        let kafka = topic(name, 1, &[]).await;
        let mut config = kafka.consumer_config(name);
        if protocol == "consumer" {
            config.remove("session.timeout.ms").remove("heartbeat.interval.ms");
            config.set("group.protocol", protocol);
        }
        let members: Vec<_> = (0..2)
            .map(|_| serve(consumer(config.clone(), name), logging(&Log::default())))
            .collect();
        let handles: Vec<_> = members.iter().map(|member| member.handle()).collect();
        let held = || handles.iter().map(|handle| handle.status().partitions.len()).sum::<usize>();
        let ready = || handles.iter().all(|handle| handle.health().ready.is_ok());
        until("both members are ready, and one owns the partition", || ready() && held() == 1)
            .await;
        for member in members {
            member.stop().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_markers_do_not_stop_the_watermark() {
    let kafka = topic("transactions", 1, &[]).await;
    let bootstrap = kafka.bootstrap();
    blocking(move || {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("transactional.id", "t")
            .create()
            .unwrap();
        producer.init_transactions(TIMEOUT).unwrap();
        for commits in [true, false, true] {
            producer.begin_transaction().unwrap();
            for _ in 0..10 {
                let record = BaseRecord::<(), str>::to("transactions").partition(0).payload("x");
                producer.send(record).unwrap();
            }
            if commits {
                producer.commit_transaction(TIMEOUT).unwrap();
            } else {
                producer.flush(TIMEOUT).unwrap();
                producer.abort_transaction(TIMEOUT).unwrap();
            }
        }
    })
    .await;
    let config = kafka.consumer_config("transactions");
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "transactions"), logging(&log));
    // 10 records and a marker, three times. No record follows the last marker.
    until_committed(&config, "transactions", &[32]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), (0..10).chain(22..32).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_gaps_do_not_stop_the_watermark() {
    let settings: &[_] = &[
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("segment.ms", "100"),
        ("min.compaction.lag.ms", "0"),
    ];
    let kafka = topic("compacted", 1, settings).await;
    let offsets = blocking(move || {
        let message = |n: i32| Message::to("compacted").key(format!("{}", n % 3)).payload("x");
        kafka.producer().produce_all((0..100).map(message)).unwrap();
        // Only a closed segment is compacted, and the next record closes it.
        let compacted = eventually(TIMEOUT, || {
            let closes = Message::to("compacted").key("closes").payload("x");
            kafka.producer().produce(closes).unwrap();
            let offsets = readable_offsets(&kafka.consumer_config("looks"), "compacted");
            (offsets.iter().filter(|&&offset| offset < 97).count() == 0).then_some(offsets)
        });
        compacted.expect("the log cleaner has run")
    })
    .await;
    let config = kafka.consumer_config("compacted");
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "compacted"), logging(&log));
    let last = *offsets.last().unwrap();
    until("the last record is handled", || log.of(0).last().is_some_and(|&offset| offset >= last))
        .await;
    until("the last record is committed", || {
        committed(&config, "compacted", 1)[0].is_some_and(|c| c > last)
    })
    .await;
    serving.stop().await.unwrap();
    assert!(log.of(0)[0] >= 97, "compacted records were received: {:?}", log.of(0));
}

/// Reads the offsets with a plain consumer.
fn readable_offsets(config: &ClientConfig, topic: &str) -> Vec<i64> {
    let consumer: BaseConsumer = config.create().unwrap();
    let (_, end) = consumer.fetch_watermarks(topic, 0, TIMEOUT).unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(topic, 0, rdkafka::Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut offsets = Vec::new();
    while offsets.last() != Some(&(end - 1)) {
        let message = consumer.poll(TIMEOUT).expect("a record within the time limit").unwrap();
        offsets.push(message.offset());
    }
    offsets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topic_is_named() {
    let kafka = topic("exists", 1, &[]).await;
    let config = kafka.consumer_config("unknown");
    let consumer = consumer(config, "exists").subscribe(["exist"]);
    let error = serve(consumer, logging(&Log::default())).ended().await.unwrap_err();
    assert!(error.to_string().contains("topic `exist` does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_broker_is_consumed_again_without_loss() {
    let (mut kafka, log) = (blocking(|| KafkaServer::start().unwrap()).await, Log::default());
    kafka = blocking(move || {
        kafka.create_topic("orders", 2, &[]).unwrap();
        kafka.producer().produce_all(messages("orders", 2, 100)).unwrap();
        kafka
    })
    .await;
    let mut config = kafka.consumer_config("g");
    config.set("reconnect.backoff.max.ms", "500");
    let serving = serve(consumer(config.clone(), "orders"), logging(&log));
    until_committed(&config, "orders", &[100; 2]).await;
    kafka = blocking(move || {
        kafka.kill().unwrap();
        kafka.restart().unwrap();
        kafka.producer().produce_all(messages("orders", 2, 100)).unwrap();
        kafka
    })
    .await;
    // librdkafka may stop fetching, which the consumer notices after 40 s.
    until_committed_within(Duration::from_secs(90), &config, "orders", &[200; 2]).await;
    let summary = serving.stop().await.unwrap();
    for partition in 0..2 {
        let mut seen = log.of(partition);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
    }
    assert!(summary.processed >= 400, "{summary:?}");
    blocking(move || drop(kafka)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_broker_does_not_block_shutdown() {
    let (kafka, log) = (blocking(|| KafkaServer::start().unwrap()).await, Log::default());
    let mut kafka = blocking(move || {
        kafka.create_topic("orders", 1, &[]).unwrap();
        kafka.producer().produce_all(messages("orders", 1, 10)).unwrap();
        kafka
    })
    .await;
    let serving = serve(consumer(kafka.consumer_config("g"), "orders"), logging(&log));
    log.reaches(10).await;
    kafka.pause().unwrap();
    let start = tokio::time::Instant::now();
    serving.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    kafka.resume().unwrap();
    blocking(move || drop(kafka)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_too_large_for_its_topic_has_no_payload() {
    let kafka = topic("large", 1, &[]).await;
    topic("large.dead", 1, &[("max.message.bytes", "20000")]).await;
    let payloads = [10, 100_000, 10, 15_000, 500_000].map(|size| vec![b'x'; size]);
    let produced = payloads.clone();
    blocking(move || {
        let message = |payload| Message::to("large").key("k").header("h", "v").payload(payload);
        kafka.producer().produce_all(produced.into_iter().map(message)).unwrap();
    })
    .await;
    let config = kafka.consumer_config("large");
    // Compressed, the payloads would fit.
    let letters_to = DeadLetter::topic("large.dead").set("compression.type", "none");
    let consumer = consumer(config.clone(), "large").on_give_up(letters_to);
    let refuses =
        service_fn(async |_: Record| Err::<(), _>(BoxError::from(error::permanent("no"))));
    let serving = serve(consumer, refuses);
    until_committed(&config, "large", &[5]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 5);
    let letters = blocking(move || letters_in(&config, "large.dead")).await;
    let sizes: Vec<_> = letters.iter().map(|l| l.payload().map(<[u8]>::len)).collect();
    assert_eq!(sizes, [Some(10), None, Some(10), Some(15_000), None]);
    for (letter, payload) in letters.iter().zip(&payloads) {
        assert_eq!((letter.key(), header(letter, "h")), (Some(&b"k"[..]), "v".to_owned()));
        if letter.payload().is_none() {
            let bytes = header(letter, "campanile-truncated-payload-bytes");
            assert_eq!(bytes, payload.len().to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_fit_individually_keep_their_payload() {
    let kafka = topic("many", 16, &[]).await;
    topic("many.dead", 1, &[("max.message.bytes", "20000")]).await;
    blocking(move || {
        let message = |n| Message::to("many").partition(n % 16).payload(vec![b'x'; 15_000]);
        kafka.producer().produce_all((0..160).map(message)).unwrap();
    })
    .await;
    let config = kafka.consumer_config("many");
    let letters_to = DeadLetter::topic("many.dead")
        .set("compression.type", "none")
        .with_flood_limit(FloodLimit::disabled());
    let consumer = consumer(config.clone(), "many").on_give_up(letters_to);
    let refuses =
        service_fn(async |_: Record| Err::<(), _>(BoxError::from(error::permanent("no"))));
    let serving = serve(consumer, refuses);
    until_committed(&config, "many", &[10; 16]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 160);
    let letters = blocking(move || letters_in(&config, "many.dead")).await;
    assert_eq!(letters.len(), 160);
    assert!(letters.iter().all(|letter| letter.payload().is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_dead_letter_topic_holds_the_offset_until_recreated() {
    let (kafka, config) = blocking(|| {
        let kafka = KafkaServer::start().unwrap();
        kafka.create_topic("orders", 1, &[]).unwrap();
        kafka.create_topic("orders.dead", 1, &[]).unwrap();
        kafka.producer().produce_all(messages("orders", 1, 1)).unwrap();
        let config = kafka.consumer_config("g");
        (kafka, config)
    })
    .await;
    let letters_to = DeadLetter::topic("orders.dead").with_timeout(Duration::from_secs(2));
    let consumer = consumer(config.clone(), "orders").on_give_up(letters_to);
    let refuses =
        service_fn(async |_: Record| Err::<(), _>(BoxError::from(error::permanent("no"))));
    let serving = serve(consumer, refuses);
    until_committed(&config, "orders", &[1]).await;
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap();
    admin.delete_topics(&["orders.dead"], &AdminOptions::new()).await.unwrap()[0].clone().unwrap();
    let kafka = blocking(move || {
        // The broker learns of the deletion later than the controller.
        let is_deleted = || {
            let metadata = admin.inner().fetch_metadata(None, TIMEOUT).ok()?;
            let remains = metadata.topics().iter().any(|topic| topic.name() == "orders.dead");
            (!remains).then_some(())
        };
        eventually(TIMEOUT, is_deleted).expect("the topic is deleted");
        kafka.producer().produce_all(messages("orders", 1, 1)).unwrap();
        kafka
    })
    .await;
    // Longer than one publication budget.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(committed(&config, "orders", 1), [Some(1)]);
    let kafka = blocking(move || {
        kafka.create_topic("orders.dead", 1, &[]).unwrap();
        kafka
    })
    .await;
    until_committed(&config, "orders", &[2]).await;
    assert_eq!(serving.stop().await.unwrap().dead_lettered, 2);
    let letters = blocking(move || letters_in(&config, "orders.dead")).await;
    assert!(!letters.is_empty());
    blocking(move || drop(kafka)).await;
}
