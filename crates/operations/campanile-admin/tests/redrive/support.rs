//! A topic, its dead-letter topic, and the entries of its letters, on a real Kafka and a real Redis.

use std::sync::LazyLock;
use std::time::Duration;

use campanile_core::{
    Command, FencingToken, Grant, IdempotencyKey, Operation, Owner, Reply, Retention, StoreKey,
};
use campanile_idempotency::Store;
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{KafkaServer, Message, RedisServer, eventually};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
pub(crate) static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

pub(crate) const NAMESPACE: &str = "payments";
const TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_TTL: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    pub(crate) topic: String,
    pub(crate) dead: String,
    pub(crate) partitions: i32,
    pub(crate) redis: RedisServer,
    pub(crate) store: RedisStore,
}

impl Scene {
    /// Creates the topics, each with this many partitions.
    pub(crate) async fn new(topic: &str, partitions: i32) -> Self {
        let dead = format!("{topic}.dead");
        for topic in [topic, &dead] {
            // The records have old timestamps.
            KAFKA.create_topic(topic, partitions, &[("retention.ms", "-1")]).unwrap();
        }
        let redis = RedisServer::start().unwrap();
        // Enough for a slow machine.
        let config = RedisConfig::new(redis.url()).with_command_timeout(TIMEOUT);
        let store = RedisStore::connect(config).await.unwrap();
        Self { topic: topic.to_owned(), dead, partitions, redis, store }
    }

    /// The settings of a run. Its group soon notices that a process was killed.
    pub(crate) fn kafka(&self) -> ClientConfig {
        let mut config = KAFKA.consumer_config("unused");
        config.remove("group.id");
        config
    }

    async fn apply(&self, key: &str, operation: Operation) -> Reply {
        let command = Command { key: store_key(key), operation, retention: Retention::default() };
        self.store.apply(command).await.unwrap().reply
    }

    /// Makes the key PROCESSING.
    pub(crate) async fn lock(&self, key: &str) -> Grant {
        let owner = Owner::new(fastrand::u64(1..)).unwrap();
        let acquire = Operation::Acquire {
            owner,
            ttl: LOCK_TTL,
            max_attempts: 5,
            fingerprint: None,
            floor: FencingToken::ZERO,
            details: None,
        };
        match self.apply(key, acquire).await {
            Reply::Acquired { token, .. } => Grant { token, owner },
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Makes a locked key FAILED.
    pub(crate) async fn give_up(&self, key: &str, grant: Grant) {
        let give_up = Operation::GiveUp { grant, reason: "declined".into() };
        assert_eq!(self.apply(key, give_up).await, Reply::GivenUp);
    }

    /// Makes a locked key COMPLETED.
    pub(crate) async fn complete(&self, key: &str, grant: Grant) {
        let (fingerprint, reply, details) = (None, None, None);
        let complete = Operation::Complete { grant, attempt: 1, fingerprint, reply, details };
        assert_eq!(self.apply(key, complete).await, Reply::Completed);
    }

    /// Makes a locked key RETRYING.
    pub(crate) async fn retry(&self, key: &str, grant: Grant) {
        let fail =
            Operation::Fail { grant, delay: Duration::ZERO, last: false, error: "timeout".into() };
        assert_eq!(self.apply(key, fail).await, Reply::Retrying);
    }

    /// Makes the key FAILED, and returns the token.
    pub(crate) async fn fail(&self, key: &str) -> FencingToken {
        let grant = self.lock(key).await;
        self.give_up(key, grant).await;
        grant.token
    }

    /// Makes a key that was given up COMPLETED under a later lock, as after a redrive.
    pub(crate) async fn complete_later(&self, key: &str, token: FencingToken) {
        let reopened = self.store.redrive(store_key(key), token, false).await.unwrap();
        assert_eq!(reopened, Reply::Reopened);
        let grant = self.lock(key).await;
        self.complete(key, grant).await;
    }

    /// Overwrites the entry with bytes that are none.
    pub(crate) fn break_entry(&self, key: &str) {
        let client = redis::Client::open(self.redis.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut pattern = b"*".to_vec();
        for &byte in store_key(key).digest() {
            // Everything but letters and digits is escaped, because it may be a wildcard.
            pattern.extend(if byte.is_ascii_alphanumeric() {
                vec![byte]
            } else {
                vec![b'\\', byte]
            });
        }
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
        let [entry] = &keys[..] else { panic!("{} entries", keys.len()) };
        let () = redis::cmd("SET").arg(entry).arg("garbage").query(&mut connection).unwrap();
    }

    /// A letter, as the driver publishes it: of a record with the key as its payload.
    pub(crate) fn letter(&self, key: &str, token: FencingToken) -> Message {
        self.keyless_letter(key, "exhausted")
            .header("campanile-key", key)
            .header("campanile-namespace", NAMESPACE)
            .header("campanile-token", token.to_string())
    }

    /// A letter of a record that held no lock.
    pub(crate) fn keyless_letter(&self, payload: &str, cause: &str) -> Message {
        self.letter_of(&self.topic, payload, cause)
    }

    pub(crate) fn letter_of(&self, topic: &str, payload: &str, cause: &str) -> Message {
        Message::to(&self.dead)
            .key(format!("account of {payload}"))
            .payload(payload)
            .header("source", "web")
            .header("kafka_dlt-original-topic", topic)
            .header("kafka_dlt-original-partition", 0_i32.to_be_bytes())
            .header("kafka_dlt-original-offset", 7_i64.to_be_bytes())
            .header("kafka_dlt-original-timestamp", 1500_i64.to_be_bytes())
            .header("kafka_dlt-original-timestamp-type", "CreateTime")
            .header("kafka_dlt-exception-message", format!("card of {payload} declined"))
            .header("campanile-cause", cause)
    }

    /// Makes this many keys FAILED, in order, and returns their letters.
    pub(crate) async fn failed_letters(&self, count: usize) -> Vec<Message> {
        let mut letters = Vec::with_capacity(count);
        for number in 0..count {
            let key = format!("p-{number}");
            letters.push(self.letter(&key, self.fail(&key).await));
        }
        letters
    }

    /// Reads all records of a topic.
    pub(crate) fn records(&self, topic: &str) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = KAFKA.consumer_config("reader").create().unwrap();
        // A busy broker may have lost its leadership for a moment.
        let metadata = || consumer.fetch_metadata(Some(topic), TIMEOUT).ok();
        let metadata = eventually(TIMEOUT, metadata).expect("the broker describes the topic");
        let mut list = TopicPartitionList::new();
        let mut count = 0;
        for partition in metadata.topics()[0].partitions() {
            let bounds = || consumer.fetch_watermarks(topic, partition.id(), TIMEOUT).ok();
            let (first, end) = eventually(TIMEOUT, bounds).expect("the broker reports the end");
            count += end - first;
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
        }
        consumer.assign(&list).unwrap();
        let record =
            |_| consumer.poll(TIMEOUT).expect("a record within the time limit").unwrap().detach();
        (0..count).map(record).collect()
    }

    /// Commits an offset of a group in the first partition of the dead-letter topic.
    pub(crate) fn commit(&self, group: &str, offset: i64) {
        self.commit_with(group, offset, "");
    }

    /// As [`commit`](Self::commit), with metadata.
    pub(crate) fn commit_with(&self, group: &str, offset: i64, metadata: &str) {
        let consumer: BaseConsumer = self.kafka().set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&self.dead, 0);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(metadata);
        consumer.commit(&list, CommitMode::Sync).unwrap();
    }

    /// The payloads of all records of the original topic, sorted.
    pub(crate) fn produced(&self) -> Vec<String> {
        let payload = |record: &OwnedMessage| {
            String::from_utf8(record.payload().unwrap_or_default().to_vec()).unwrap()
        };
        let mut produced: Vec<String> = self.records(&self.topic).iter().map(payload).collect();
        produced.sort();
        produced
    }
}

pub(crate) fn store_key(key: &str) -> StoreKey {
    StoreKey::new(NAMESPACE.try_into().unwrap(), &IdempotencyKey::new(key.to_owned()).unwrap())
}

/// The names and values of the headers, as text.
pub(crate) fn headers(record: &OwnedMessage) -> Vec<(String, String)> {
    let headers = record.headers().map(|headers| headers.iter()).into_iter().flatten();
    let text =
        |value: Option<&[u8]>| String::from_utf8(value.unwrap_or_default().to_vec()).unwrap();
    headers.map(|header| (header.key.to_owned(), text(header.value))).collect()
}
