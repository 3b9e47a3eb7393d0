//! Logs that lose records, or are replaced by another log of the same name.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use campanile_core::{BoxError, KeyExtractor as _, Record, key};
use campanile_kafka::{Outputs, Transactions, topic_id};
use campanile_test::{KafkaServer, Message, Producer, eventually};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use tower::{Service, service_fn};

use crate::captured_log::CapturedLog;
use crate::real::{KAFKA, NEVER_FENCED, blocking, logging, start_with_proxy_and, topic};
use crate::support::{
    Log, TIMEOUT, committed, consumer, gated, messages, serve, start, until, until_committed,
};

const REPLACED: &str = "the topic was deleted and recreated";
const DELETED: &str = "records were deleted before they were read";
const TRUNCATED: &str = "the brokers have lost the end of the partition";

fn admin(kafka: &KafkaServer) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", kafka.bootstrap()).create().unwrap()
}

/// Settings of a group with this protocol whose members are not removed while they are cut off.
fn settings(bootstrap: &str, group: &str, protocol: &str, reset: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", group);
    config.set("group.protocol", protocol).set("auto.offset.reset", reset);
    if protocol == "classic" {
        config.set("session.timeout.ms", "30000").set("heartbeat.interval.ms", "300");
    }
    config
}

fn produce(kafka: &KafkaServer, topic: &str, records: usize) {
    // A new producer, because an existing one knows the earlier topic.
    let producer = Producer::new(&kafka.bootstrap()).unwrap();
    producer.produce_all(messages(topic, 1, records)).unwrap();
}

async fn delete(kafka: &KafkaServer, topic: &str) {
    let admin = admin(kafka);
    admin.delete_topics(&[topic], &AdminOptions::new()).await.unwrap()[0].clone().unwrap();
    let is_gone = || {
        let metadata = admin.inner().fetch_metadata(None, TIMEOUT).unwrap();
        metadata.topics().iter().all(|other| other.name() != topic).then_some(())
    };
    tokio::task::block_in_place(|| eventually(TIMEOUT, is_gone)).expect("the topic is deleted");
}

/// Deletes the topic and creates it again, with this many records.
async fn recreate(kafka: &KafkaServer, topic: &str, records: usize) {
    delete(kafka, topic).await;
    tokio::task::block_in_place(|| {
        kafka.create_topic(topic, 1, &[]).unwrap();
        produce(kafka, topic, records);
    });
}

/// Logs the key by coordinates of each record.
type Keys = Arc<Mutex<Vec<String>>>;

fn keys(
    keys: &Keys,
) -> impl Service<Record, Response = Outputs, Error = BoxError, Future: Send> + Clone + Send + use<>
{
    let keys = keys.clone();
    service_fn(move |record: Record| {
        let key = key::coordinates().extract(&record).unwrap().unwrap();
        keys.lock().unwrap().push(key.to_string());
        async move { Ok(Outputs::of(&record)) }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_recreated_while_cut_off_is_read_from_its_start() {
    let all = [
        ("cut.classic", "classic", "earliest", false),
        ("cut.latest", "classic", "latest", false),
        ("cut.newer", "consumer", "latest", false),
        ("cut.transactional", "classic", "earliest", true),
    ];
    let (kafka, proxy) = blocking(|| start_with_proxy_and(&[NEVER_FENCED])).await;
    for (name, protocol, reset, transactional) in all {
        tokio::task::block_in_place(|| {
            kafka.create_topic(name, 1, &[]).unwrap();
            produce(&kafka, name, 20);
        });
        let config = settings(&proxy.addr().to_string(), name, protocol, reset);
        let direct = settings(&kafka.bootstrap(), name, "classic", reset);
        commit(&direct, name, 0, "").await;
        let handled = Keys::default();
        let new = consumer(config.clone(), name);
        let serving = match transactional {
            true => start(new.serve_transactional(keys(&handled), Transactions::new(name))),
            false => serve(new, keys(&handled)),
        };
        until_committed(&direct, name, &[20]).await;
        proxy.swallow_requests();
        // The new topic is longer than the position in the old one.
        recreate(&kafka, name, 60).await;
        proxy.heal().unwrap();
        until_committed(&direct, name, &[60]).await;
        serving.stop().await.unwrap();
        let handled = handled.lock().unwrap();
        let old = handled[0].split_once('#').expect("the key has the id of the topic").1;
        for offset in 0..60 {
            let at = format!("{name}/0@{offset}#");
            let is_new = |key: &&String| key.starts_with(&at) && !key.ends_with(old);
            assert_eq!(handled.iter().filter(is_new).count(), 1, "{name}: {at}");
        }
    }
    blocking(move || drop((kafka, proxy))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_for_a_deleted_topic_is_not_made_for_the_new_one() {
    for (name, protocol) in [("late.classic", "classic"), ("late.newer", "consumer")] {
        let kafka = topic(name, 1, &[]).await;
        blocking(move || produce(kafka, name, 20)).await;
        let config = settings(&kafka.bootstrap(), name, protocol, "earliest");
        let direct = settings(&kafka.bootstrap(), name, "classic", "earliest");
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(15)));
        let serving = serve(consumer(config, name), gated(&log, &gate));
        until_committed(&direct, name, &[15]).await;
        delete(kafka, name).await;
        // The handler of the sixteenth record succeeds in the meantime.
        gate.add_permits(1000);
        blocking(move || {
            kafka.create_topic(name, 1, &[]).unwrap();
            produce(kafka, name, 60);
        })
        .await;
        until_committed(&direct, name, &[60]).await;
        serving.stop().await.unwrap();
        let handled = log.of(0);
        let (first, second) = handled.split_at(handled.iter().rposition(|of| *of == 0).unwrap());
        assert_eq!(second, (0..60).collect::<Vec<_>>(), "{name}, after {first:?}");
    }
}

/// Commits an offset for a group without members, with this metadata.
async fn commit(config: &ClientConfig, topic: &str, offset: i64, metadata: &str) {
    let (config, topic, metadata) = (config.clone(), topic.to_owned(), metadata.to_owned());
    let commit = move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut offsets = TopicPartitionList::new();
        let mut element = offsets.add_partition(&topic, 0);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        eventually(TIMEOUT, || consumer.commit(&offsets, CommitMode::Sync).ok())
    };
    blocking(commit).await.expect("a group without members accepts the commit");
}

#[tokio::test(flavor = "current_thread")]
async fn offset_of_an_earlier_topic_is_reported_and_not_used() {
    let kafka = topic("earlier", 1, &[]).await;
    blocking(|| produce(&KAFKA, "earlier", 10)).await;
    for reset in ["earliest", "latest", "error"] {
        let config = settings(&kafka.bootstrap(), reset, "classic", reset);
        commit(&config, "earlier", 5, "topic-id=AAAAAAAAAAAAAAAAAAAAAQ").await;
        let (events, _guard) = CapturedLog::start();
        let log = Log::default();
        let new = consumer(config.clone(), "earlier").skip_at("earlier/0@3".parse().unwrap());
        let serving = serve(new, logging(&log));
        if reset == "error" {
            serving.ended().await.unwrap_err();
            assert_eq!(log.len(), 0);
        } else {
            until_committed(&config, "earlier", &[10]).await;
            serving.stop().await.unwrap();
            // The record to skip was one of the earlier topic.
            assert_eq!(log.of(0), (0..10).collect::<Vec<_>>(), "{reset}");
            assert_eq!(events.lines("WARN", "record not skipped").len(), 1, "{}", events.text());
        }
        let lines = events.lines("ERROR", REPLACED);
        assert_eq!(lines.len(), 1, "{reset}: {}", events.text());
        assert!(lines[0].contains("old_id=\"AAAAAAAAAAAAAAAAAAAAAQ\""), "{}", lines[0]);
    }

    // An id that is named holds also when the partition is assigned again.
    let id = blocking(|| topic_id(admin(&KAFKA).inner(), "earlier", TIMEOUT)).await;
    let id = id.unwrap().unwrap();
    for (group, id, skipped) in [("named", &*id, true), ("old", "AAAAAAAAAAAAAAAAAAAAAQ", false)] {
        let config = settings(&kafka.bootstrap(), group, "classic", "earliest");
        let (events, _guard) = CapturedLog::start();
        let log = Log::default();
        let at = format!("earlier/0@3#{id}").parse().unwrap();
        let serving = serve(consumer(config.clone(), "earlier").skip_at(at), logging(&log));
        until_committed(&config, "earlier", &[10]).await;
        serving.stop().await.unwrap();
        let expected: Vec<_> = (0..10).filter(|offset| !skipped || *offset != 3).collect();
        assert_eq!(log.of(0), expected, "{group}");
        let refused = events.lines("WARN", "record not skipped");
        assert_eq!(refused.len(), usize::from(!skipped), "{}", events.text());
    }

    // The metadata of other programs means nothing, and neither does what a tool has copied from another
    // cluster.
    for metadata in ["topic-id is unknown", "topic-id=AAAAAAAAAAAAAAAAAAAAAQ cluster-id=another"] {
        let config = settings(&kafka.bootstrap(), metadata, "classic", "earliest");
        commit(&config, "earlier", 5, metadata).await;
        let log = Log::default();
        let serving = serve(consumer(config.clone(), "earlier"), logging(&log));
        until_committed(&config, "earlier", &[10]).await;
        serving.stop().await.unwrap();
        assert_eq!(log.of(0), [5, 6, 7, 8, 9], "{metadata}");
    }
}

/// Deletes the records before this offset.
async fn delete_before(topic: &str, offset: i64) {
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    admin(&KAFKA).delete_records(&offsets, &AdminOptions::new()).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn deleted_records_are_reported_and_those_that_exist_are_read() {
    for reset in ["earliest", "latest", "error"] {
        let name: &'static str = format!("deleted.{reset}").leak();
        let kafka = topic(name, 1, &[]).await;
        blocking(move || produce(kafka, name, 100)).await;
        let config = settings(&kafka.bootstrap(), name, "classic", reset);
        commit(&config, name, 10, "").await;
        delete_before(name, 80).await;
        let (events, _guard) = CapturedLog::start();
        let log = Log::default();
        let serving = serve(consumer(config.clone(), name), logging(&log));
        if reset == "error" {
            let error = serving.ended().await.unwrap_err().to_string();
            assert!(error.contains("has lost records"), "{error}");
            assert_eq!(log.len(), 0);
        } else {
            until_committed(&config, name, &[100]).await;
            serving.stop().await.unwrap();
            assert_eq!(log.of(0), (80..100).collect::<Vec<_>>(), "{reset}");
        }
        let lines = events.lines("ERROR", DELETED);
        assert_eq!(lines.len(), 1, "{reset}: {}", events.text());
        assert!(lines[0].ends_with("position=10 start=80 lost=70"), "{}", lines[0]);
    }
}

/// A fetch from before the start of the log would reset the position to there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_starts_at_its_offset_in_a_log_without_its_first_records() {
    let kafka = topic("deleted.first", 1, &[]).await;
    blocking(|| produce(&KAFKA, "deleted.first", 100)).await;
    delete_before("deleted.first", 80).await;
    let config = settings(&kafka.bootstrap(), "deleted.first", "classic", "earliest");
    for _ in 0..5 {
        commit(&config, "deleted.first", 90, "").await;
        let log = Log::default();
        let serving = serve(consumer(config.clone(), "deleted.first"), logging(&log));
        until_committed(&config, "deleted.first", &[100]).await;
        serving.stop().await.unwrap();
        assert_eq!(log.of(0), (90..100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn records_deleted_during_a_pause_are_reported() {
    let kafka = topic("deleted.paused", 1, &[]).await;
    blocking(|| produce(&KAFKA, "deleted.paused", 5)).await;
    let config = settings(&kafka.bootstrap(), "deleted.paused", "classic", "earliest");
    let (events, _guard) = CapturedLog::start();
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "deleted.paused"), logging(&log));
    until_committed(&config, "deleted.paused", &[5]).await;
    let handle = serving.handle();
    handle.pause_partition("deleted.paused", 0);
    blocking(|| {
        // More than is read ahead.
        let message = |_| Message::to("deleted.paused").partition(0).payload(vec![b'x'; 10_000]);
        KAFKA.producer().produce_all((0..3000).map(message)).unwrap();
    })
    .await;
    until("the pause takes effect", || handle.status().partitions[0].paused).await;
    delete_before("deleted.paused", 3000).await;
    handle.resume_partition("deleted.paused", 0);
    until_committed(&config, "deleted.paused", &[3005]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0)[log.len() - 5..], [3000, 3001, 3002, 3003, 3004]);
    let gap = log.of(0).windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert_eq!((gap, events.lines("ERROR", DELETED).len()), (1, 1), "{}", events.text());
}

/// The broker loses what it had not synced, and then accepts other records at the same offsets.
#[tokio::test(flavor = "current_thread")]
async fn records_in_place_of_a_lost_end_are_read() {
    const TOPICS: [&str; 3] = ["earliest", "latest", "error"];
    let kafka = blocking(|| {
        let kafka = KafkaServer::start().unwrap();
        for topic in TOPICS {
            kafka.create_topic(topic, 1, &[]).unwrap();
            (0..10).for_each(|_| produce(&kafka, topic, 10));
        }
        kafka
    })
    .await;
    let config = |topic| settings(&kafka.bootstrap(), topic, "classic", topic);
    let configs = TOPICS.map(config);
    for (topic, config) in TOPICS.iter().zip(&configs) {
        commit(config, topic, 0, "").await;
        let serving = serve(consumer(config.clone(), topic), logging(&Log::default()));
        until_committed(config, topic, &[100]).await;
        serving.stop().await.unwrap();
    }
    let kafka = blocking(move || {
        let mut kafka = kafka;
        kafka.kill().unwrap();
        TOPICS.iter().for_each(|topic| cut_off_half(&kafka.segment(topic, 0)));
        kafka.restart().unwrap();
        // Beyond the committed offset.
        TOPICS.iter().for_each(|topic| produce(&kafka, topic, 70));
        kafka
    })
    .await;
    for (topic, config) in TOPICS.iter().zip(&configs) {
        let (events, _guard) = CapturedLog::start();
        let log = Log::default();
        let serving = serve(consumer(config.clone(), topic), logging(&log));
        if *topic == "error" {
            let error = serving.ended().await.unwrap_err().to_string();
            assert!(error.contains("has lost records"), "{error}");
        } else {
            until_committed(config, topic, &[120]).await;
            serving.stop().await.unwrap();
            assert_eq!(log.of(0), (50..120).collect::<Vec<_>>(), "{topic}");
        }
        let lines = events.lines("ERROR", TRUNCATED);
        assert_eq!(lines.len(), 1, "{topic}: {}", events.text());
        assert!(lines[0].ends_with("position=100 offset=50"), "{}", lines[0]);
    }
    blocking(move || drop(kafka)).await;
}

/// Cuts off the second half of a log, which has ten batches of ten records.
fn cut_off_half(path: &Path) {
    let bytes = fs::read(path).unwrap();
    // A batch begins with its first offset (8 bytes) and the length of the rest (4 bytes).
    let mut at = 0;
    while bytes[at..at + 8] != 50_i64.to_be_bytes() {
        let length = bytes[at + 8..at + 12].try_into().unwrap();
        at += 12 + u32::from_be_bytes(length) as usize;
    }
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(at as u64).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gap_of_a_transaction_is_not_reported() {
    let kafka = topic("markers", 1, &[]).await;
    let config = settings(&kafka.bootstrap(), "markers", "classic", "error");
    commit(&config, "markers", 0, "").await;
    let log = Log::default();
    let serving = serve(consumer(config.clone(), "markers"), logging(&log));
    blocking(|| {
        use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", KAFKA.bootstrap()).set("transactional.id", "markers");
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(TIMEOUT).unwrap();
        for _ in 0..3 {
            producer.begin_transaction().unwrap();
            producer.send(BaseRecord::<(), _>::to("markers").partition(0).payload("p")).unwrap();
            producer.commit_transaction(TIMEOUT).unwrap();
        }
    })
    .await;
    until("all records are committed", || committed(&config, "markers", 1)[0] >= Some(5)).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), [0, 2, 4]);
}
