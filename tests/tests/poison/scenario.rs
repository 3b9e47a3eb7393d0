//! A topic with a record that cannot be processed, and its processing.

use std::fs;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use campanile::store::State;
use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tempfile::TempDir;

use crate::{group, store};

const TIMEOUT: Duration = Duration::from_secs(90);
const SIGABRT: i32 = 6;

/// Number of good records.
const GOOD_RECORDS: usize = 8;

/// The offset of the poison record, which follows a record that does not decode and some good
/// records.
const POISON_OFFSET: i64 = 4;

pub(crate) struct Scenario<K> {
    pub(crate) kafka: K,
    redis: RedisServer,
    topic: &'static str,
    attempts: u32,
    pub(crate) folder: TempDir,
    starts: usize,
}

/// A handler that has started.
#[derive(Debug)]
pub(crate) struct Run {
    id: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
}

impl<K: Deref<Target = KafkaServer>> Scenario<K> {
    /// Creates a scenario. The topic's name is also the group's.
    pub(crate) fn new(kafka: K, topic: &'static str, attempts: u32) -> Self {
        kafka.create_topic(topic, 1, &[]).unwrap();
        kafka.create_topic(&dead_letter_topic(topic), 1, &[]).unwrap();
        let mut payloads: Vec<_> =
            (0..GOOD_RECORDS).map(|number| payload(&good_id(number))).collect();
        payloads.insert(0, b"?".to_vec());
        payloads.insert(POISON_OFFSET as usize, payload("poison"));
        let messages = payloads.into_iter().map(|p| Message::to(topic).partition(0).payload(p));
        kafka.producer().produce_all(messages).unwrap();
        let (redis, folder) = (RedisServer::start().unwrap(), TempDir::new().unwrap());
        Self { kafka, redis, topic, attempts, folder, starts: 0 }
    }

    /// Starts a process that dies at this point.
    pub(crate) fn start(&mut self, point: &str) -> Process {
        self.starts += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_poison"));
        command.args([&self.kafka.bootstrap(), self.topic, &self.redis.url()]);
        command.arg(self.folder.path()).args([&self.attempts.to_string(), point]);
        Process::spawn(&command, self.folder.path().join("log")).unwrap()
    }

    /// Starts a process, and waits until it has died at this point.
    pub(crate) fn run_until_crash(&mut self, point: &str) {
        let mut process = self.start(point);
        let status = process.wait(TIMEOUT).unwrap();
        let died = status.is_some_and(|status| status.signal() == Some(SIGABRT));
        assert!(died, "{point}: {status:?}: {}", process.log().unwrap());
        let committed = self.committed_offset();
        println!(
            "{}: died, {point}; committed {committed:?}, poison at {POISON_OFFSET}",
            self.topic
        );
    }

    /// Starts a process that stays alive, and waits until everything is committed.
    ///
    /// Checks that the poison record is in the dead-letter topic and FAILED, and that all other
    /// records were processed once. Returns the poison record's letters.
    pub(crate) fn run_to_completion(&mut self) -> Vec<OwnedMessage> {
        let mut process = self.start("nowhere");
        group::wait_until_committed(
            &self.kafka.consumer_config(self.topic),
            self.topic,
            1,
            TIMEOUT,
        );
        let status = process.terminate().unwrap();
        assert!(status.success(), "{status}: {}", process.log().unwrap());

        let entries = store::read_entries([&self.redis], "poison");
        let poison = entries.get("poison").unwrap();
        let seen = (poison.state(), u32::from(poison.attempt()));
        assert_eq!(seen, (State::Failed, self.attempts));
        for id in (0..GOOD_RECORDS).map(good_id) {
            let entry = entries.get(&id).unwrap();
            assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1), "{id}");
            assert_eq!(self.runs(&id).len(), 1, "{id}");
        }
        let (letters, others): (Vec<_>, Vec<_>) = self
            .read_letters()
            .into_iter()
            .partition(|letter| header(letter, "campanile-cause") != b"undecodable");
        assert!(!letters.is_empty() && !others.is_empty(), "{letters:?} {others:?}");
        for letter in &letters {
            assert_eq!(header(letter, "campanile-key"), b"poison");
            assert_eq!(header(letter, "kafka_dlt-original-topic"), self.topic.as_bytes());
            assert_eq!(header(letter, "kafka_dlt-original-offset"), POISON_OFFSET.to_be_bytes());
        }
        let copies: Vec<_> = letters.iter().map(LetterCopy::of).collect();
        let handled = self.runs("poison").len();
        println!("{}: {} starts, handler begun {handled}, {copies:?}", self.topic, self.starts);
        letters
    }

    /// Reads the runs of one record, in order.
    pub(crate) fn runs(&self, id: &str) -> Vec<Run> {
        let text = fs::read_to_string(self.folder.path().join("runs")).unwrap_or_default();
        let run = |line: &str| match *line.split(' ').collect::<Vec<_>>() {
            [id, token, attempt] => Run {
                id: id.to_owned(),
                token: token.parse().unwrap(),
                attempt: attempt.parse().unwrap(),
            },
            _ => panic!("invalid run: {line}"),
        };
        text.lines().map(run).filter(|run| run.id == id).collect()
    }

    fn read_letters(&self) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = self.kafka.consumer_config("letters").create().unwrap();
        let topic = dead_letter_topic(self.topic);
        // A busy broker may have lost its leadership for a moment.
        let end = || Some(consumer.fetch_watermarks(&topic, 0, TIMEOUT).ok()?.1);
        let end = eventually(TIMEOUT, end).expect("the broker reports the end");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let letter =
            |_| consumer.poll(TIMEOUT).expect("a letter within the time limit").unwrap().detach();
        (0..end).map(letter).collect()
    }

    fn committed_offset(&self) -> Offset {
        let consumer: BaseConsumer = self.kafka.consumer_config(self.topic).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(self.topic, 0);
        let committed = consumer.committed_offsets(list, TIMEOUT).unwrap();
        committed.find_partition(self.topic, 0).unwrap().offset()
    }
}

/// The properties that distinguish copies of a letter.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LetterCopy {
    pub(crate) token: u64,
    pub(crate) give_ups: u32,
    pub(crate) truncated: bool,
}

impl LetterCopy {
    pub(crate) fn of(letter: &OwnedMessage) -> Self {
        let text = |name| String::from_utf8(header(letter, name)).unwrap();
        let poison = payload("poison");
        let truncated = match letter.payload() {
            Some(payload) => {
                assert_eq!(payload, poison);
                false
            }
            None => {
                let length = text("campanile-truncated-payload-bytes");
                assert_eq!(length, poison.len().to_string());
                true
            }
        };
        let give_ups = text("campanile-give-ups").parse().unwrap();
        Self { token: text("campanile-token").parse().unwrap(), give_ups, truncated }
    }
}

/// Finds the value of the only header with this name.
pub(crate) fn header(letter: &OwnedMessage, name: &str) -> Vec<u8> {
    let mut named = letter.headers().unwrap().iter().filter(|header| header.key == name);
    let value =
        named.next().and_then(|header| header.value).unwrap_or_else(|| panic!("no header {name}"));
    assert!(named.next().is_none(), "header {name} occurs twice");
    value.to_vec()
}

fn dead_letter_topic(topic: &str) -> String {
    format!("{topic}.dead")
}

fn good_id(number: usize) -> String {
    format!("p-{number}")
}

/// Large enough, even compressed, to be distinguishable from everything else that a client sends to
/// a broker.
fn payload(id: &str) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let noise: String = (0..20_000).map(|_| rng.alphanumeric()).collect();
    serde_json::json!({ "id": id, "noise": noise }).to_string().into_bytes()
}
