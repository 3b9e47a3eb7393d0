//! Planted situations, each with the cause that `explain` must find, on one broker and one Redis.
//!
//! Each situation has a partition of one topic, in which its record is at offset 1 unless it says
//! otherwise, and a namespace. The first group has a member, the others have none.

mod bad_input;
mod situations;

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use campanile_admin::explain::{Cause, Explain, Explanation, KeySource};
use campanile_admin::{AnyStore, StoreConfig};
use campanile_core::{Coordinates, Namespace};
use campanile_idempotency::{Found, InspectStore, Inspection};
use campanile_kafka::topic_id;
use campanile_redis::RedisConfig;
use campanile_test::{KafkaServer, Message, RedisServer, eventually};
use futures_util::FutureExt;
use futures_util::future::join_all;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::planter::{MAX_ATTEMPTS, Planter};

const TIMEOUT: Duration = Duration::from_secs(30);
const TOPIC: &str = "payments";
const HEADER: &str = "idempotency-key";
const BUSY: &str = "billing";
const IDLE: &str = "idle";
/// A group to which a transaction that is open has sent offsets.
const TRANSACTIONAL: &str = "transactional";

/// A `static` is never dropped; the server's process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| {
    let builder = KafkaServer::builder().property("log.cleaner.backoff.ms", "100");
    builder.property("log.initial.task.delay.ms", "100").start().unwrap()
});

static REDIS: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start().unwrap());

/// A situation, and the cause that explains its record.
struct Situation {
    name: &'static str,
    cause: Cause,
    at: Coordinates,
    records: Vec<Message>,
    group: Option<&'static str>,
    committed: Option<i64>,
    key: KeySource,
    max_attempts: Option<u16>,
    planter: Planter,
    /// A command of Redis that makes the value something else than an entry, without the name.
    garbling: Option<&'static [&'static str]>,
}

impl Situation {
    /// The record is the second one of its partition; all before it are finished.
    fn new(partition: usize, name: &'static str, cause: Cause) -> Self {
        let partition = i32::try_from(partition).unwrap();
        let key = format!("p-{partition}");
        let other = Message::to(TOPIC).partition(partition).header(HEADER, "other");
        let record = Message::to(TOPIC).partition(partition).header(HEADER, &key);
        Self {
            name,
            cause,
            at: Coordinates { topic: TOPIC.into(), partition, offset: 1 },
            records: vec![other, record],
            group: Some(BUSY),
            committed: Some(1),
            key: KeySource::default(),
            max_attempts: Some(MAX_ATTEMPTS),
            planter: Planter::new(&key),
            garbling: None,
        }
    }

    /// The record's offset is committed.
    fn finished(self) -> Self {
        self.committed(Some(2))
    }

    fn committed(self, committed: Option<i64>) -> Self {
        Self { committed, ..self }
    }

    fn group(self, group: Option<&'static str>) -> Self {
        Self { group, ..self }
    }

    fn offset(mut self, offset: i64) -> Self {
        self.at.offset = offset;
        self
    }

    fn in_topic(mut self, topic: &str) -> Self {
        self.at = Coordinates { topic: topic.into(), partition: 0, offset: self.at.offset };
        self.records.clear();
        self.group(None)
    }

    /// Replaces the record.
    fn record(mut self, change: impl FnOnce(Message) -> Message) -> Self {
        self.records[1] = change(Message::to(TOPIC).partition(self.at.partition));
        self
    }

    fn key(self, key: KeySource) -> Self {
        Self { key, ..self }
    }

    /// The record has this idempotency key.
    fn with_key(self, key: &str) -> Self {
        Self { planter: Planter::new(key), ..self }
    }

    fn garbled(self, garbling: &'static [&'static str]) -> Self {
        Self { garbling: Some(garbling), ..self }
    }

    fn without_max_attempts(self) -> Self {
        Self { max_attempts: None, ..self }
    }

    /// Changes the entry. The texts are the coordinates of this record and of another one.
    fn plant(self, plant: impl FnOnce(&Planter, &str, &str)) -> Self {
        let other = Coordinates { offset: 0, ..self.at.clone() };
        plant(&self.planter, &self.at.to_string(), &other.to_string());
        self
    }

    /// Each situation has its own namespace, because some have the same key.
    fn namespace(&self) -> Namespace {
        let Coordinates { topic, partition, .. } = &self.at;
        format!("{topic}-{partition}").try_into().unwrap()
    }

    /// The name of the entry in Redis, by the layout in `docs/protocol.md`.
    fn entry_name(&self) -> Vec<u8> {
        let key = self.planter.key();
        let digest = key.digest();
        let bucket = digest[15] & 15;
        [format!("{{{}:{bucket:02x}}}", self.namespace()).as_bytes(), digest].concat()
    }

    /// Copies the entry to Redis. The clock of Redis cannot be set, so the times of the entry are moved
    /// by the difference between the clocks.
    fn copy_to_redis(&self) {
        let client = redis::Client::open(REDIS.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let name = self.entry_name();
        let store = &self.planter.store;
        let inspection = store.inspect(&self.planter.key()).now_or_never();
        let Inspection { now, found, .. } = inspection.expect("the store does not wait").unwrap();
        if let Found::Entry { entry, expires_at } = found {
            let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
            let now_in_redis = seconds * 1_000_000 + micros;
            let moved = |time: SystemTime| {
                let ahead = i64::try_from(micros_of(time)).unwrap()
                    - i64::try_from(micros_of(now)).unwrap();
                now_in_redis.checked_add_signed(ahead).unwrap()
            };
            let mut value = entry.to_bytes().to_vec();
            let created = u32::try_from(moved(entry.created()) / 1_000_000).unwrap();
            value[32..36].copy_from_slice(&created.to_be_bytes());
            value[36..44].copy_from_slice(&moved(entry.at()).to_be_bytes());
            let set = redis::cmd("SET").arg(&name).arg(value).arg("PXAT").take();
            () = { set }.arg(moved(expires_at) / 1_000).query(&mut connection).unwrap();
        }
        if let Some([command, arguments @ ..]) = self.garbling {
            () = redis::cmd(command).arg(&name).arg(arguments).query(&mut connection).unwrap();
        }
    }

    fn explain(&self) -> Explain {
        let mut explain = Explain::new(self.at.clone(), self.namespace());
        if let Some(group) = self.group {
            explain = explain.with_group(group);
        }
        if let Some(max_attempts) = self.max_attempts {
            explain = explain.with_max_attempts(max_attempts);
        }
        explain
    }

    async fn explained(&self, store: &AnyStore) -> Explanation {
        self.explain().run(&kafka_config(), store, &self.key).await.unwrap()
    }
}

fn micros_of(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

fn kafka_config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", KAFKA.bootstrap());
    config
}

fn partition_list(situations: &[Situation], group: &str) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for situation in situations.iter().filter(|situation| situation.group == Some(group)) {
        if let Some(committed) = situation.committed {
            let Coordinates { topic, partition, .. } = &situation.at;
            list.add_partition_offset(topic, *partition, Offset::Offset(committed)).unwrap();
        }
    }
    list
}

/// Creates the topic, with more partitions than there are situations. Its id is a part of keys by coordinates.
static TOPIC_ID: LazyLock<String> = LazyLock::new(|| {
    KAFKA.create_topic(TOPIC, 150, &[]).unwrap();
    let consumer: BaseConsumer = kafka_config().create().unwrap();
    let id = || topic_id(consumer.client(), TOPIC, TIMEOUT).ok()?;
    eventually(TIMEOUT, id).expect("the topic has an id").to_string()
});

/// Creates what the situations need in Kafka. Returns the member of the first group.
fn plant(situations: &[Situation]) -> BaseConsumer {
    LazyLock::force(&TOPIC_ID);
    KAFKA.create_topic("elsewhere", 1, &[]).unwrap();
    let records = situations.iter().flat_map(|situation| situation.records.clone());
    KAFKA.producer().produce_all(records).unwrap();
    for group in [BUSY, IDLE, TRANSACTIONAL] {
        let consumer: BaseConsumer = KAFKA.consumer_config(group).create().unwrap();
        let list = partition_list(situations, group);
        // The group's coordinator may still be starting.
        let commit = || consumer.commit(&list, CommitMode::Sync).ok();
        eventually(TIMEOUT, commit).expect("committed");
    }
    // A group with members accepts no offsets of others.
    let mut config = KAFKA.consumer_config(BUSY);
    // A member that is only stalled stays in the group.
    config.set("session.timeout.ms", "60000");
    let member: BaseConsumer = config.create().unwrap();
    member.subscribe(&["elsewhere"]).unwrap();
    let joined = eventually(TIMEOUT, || {
        member.poll(Duration::from_millis(50));
        (member.assignment().unwrap().count() > 0).then_some(())
    });
    joined.expect("the member joins within the time limit");
    member
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_situations_are_explained() {
    let blocking = tokio::task::spawn_blocking(|| {
        let situations = situations::all();
        let member = plant(&situations);
        situations.iter().for_each(Situation::copy_to_redis);
        (situations, member)
    });
    let (situations, _member) = blocking.await.unwrap();
    let config = RedisConfig::new(REDIS.url()).with_command_timeout(TIMEOUT);
    let store = StoreConfig::Redis(config).connect_to_inspect().await.unwrap();
    let explanations = join_all(situations.iter().map(|it| it.explained(&store))).await;
    let mut wrong = Vec::new();
    for (situation, explanation) in situations.iter().zip(&explanations) {
        let Situation { name, cause, .. } = situation;
        if explanation.cause != *cause {
            wrong.push(format!("{name}: expected {cause:?}, got {explanation:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), situations.len(), wrong.join("\n"));

    // The member of the group has the other topic.
    let text = explanations[running(&situations)].to_string();
    assert!(text.contains("is not finished; the partition is assigned to no member"), "{text}");
    let elsewhere = Situation {
        at: "elsewhere/0@0".parse().unwrap(),
        ..situations.into_iter().next().unwrap()
    };
    let text = elsewhere.explained(&store).await.to_string();
    assert!(text.contains("no committed offset; the partition is assigned to rdkafka@"), "{text}");
}

fn running(situations: &[Situation]) -> usize {
    let is_running = |situation: &Situation| situation.name == "running";
    situations.iter().position(is_running).unwrap()
}

/// Reads the offset of the first record of the only partition.
fn first_offset(topic: &str) -> Option<i64> {
    let consumer: BaseConsumer = KAFKA.consumer_config("looks").create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let message = consumer.poll(TIMEOUT)?;
    Some(rdkafka::Message::offset(&message.unwrap()))
}
