//! Dead letters and copies in retry topics, as the broker has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use campanile_test::KafkaServer;
use campanile_test::history::{Coordinates, Event, Outcome, Published, TOPIC_HEADER};
use rdkafka::Message;
use rdkafka::message::{Headers, OwnedMessage};

use crate::LETTER_PARTITIONS;
use crate::history::TestHistory;
use crate::invoices::messages;
use crate::scenario::Kind;

/// How far the time of a message may be before its cause, in microseconds: its timestamp is truncated
/// to milliseconds.
const TOLERANCE: u64 = 2_000;

/// A dead letter, or a copy.
struct Letter {
    at: u64,
    is_copy: bool,
    /// The record that was given up or copied, or that of which it is a copy.
    origin: Coordinates,
    to: Coordinates,
}

/// Counts the messages of a topic.
pub(crate) fn count(kafka: &KafkaServer, topic: &str) -> usize {
    messages(kafka, topic, LETTER_PARTITIONS, "read_uncommitted").len()
}

/// Records all dead letters and copies of a group, and counts them.
pub(crate) fn record(kafka: &KafkaServer, kind: &Kind, history: &TestHistory) -> usize {
    let recorder = &history.recorder;
    let convert = recorder.timestamp_converter();
    let letter = |message: OwnedMessage, is_copy| Letter {
        at: convert(message.timestamp().to_millis().unwrap().try_into().unwrap()),
        is_copy,
        origin: if is_copy { origin_of_copy(&message) } else { origin_of_dead_letter(&message) },
        to: Coordinates::new(message.topic(), message.partition(), message.offset()),
    };
    let read = |topic: &str, is_copy| {
        let messages = messages(kafka, topic, LETTER_PARTITIONS, "read_committed");
        messages.into_iter().map(move |message| (message, is_copy))
    };
    let mut all: Vec<_> = read(&kind.dead_letters(), false).collect();
    if kind.has_retries {
        all.extend(read(&kind.retries(), true));
    }
    let mut all: Vec<_> =
        all.into_iter().map(|(message, is_copy)| letter(message, is_copy)).collect();
    all.sort_by_key(|letter| letter.at);
    let count = all.len();
    let failures = failures(history);
    // The records with each origin: the record, and its copies so far.
    let mut records: BTreeMap<Coordinates, Vec<Coordinates>> = BTreeMap::new();
    let mut finished = BTreeSet::new();
    for Letter { at, is_copy, origin, to } in all {
        let same = records.entry(origin.clone()).or_insert_with(|| vec![origin.clone()]);
        // Its headers name the origin. It was published for the record that has failed last, or for an
        // earlier one if two copies wait at the same time.
        let last_failure = |record: &Coordinates| {
            let times = failures.get(record)?;
            times.iter().copied().filter(|time| *time <= at + TOLERANCE).max()
        };
        let rank = |record: &&Coordinates| (!finished.contains(*record), last_failure(record));
        let failed = same.iter().filter(|record| last_failure(record).is_some()).max_by_key(rank);
        let record = failed.unwrap_or(&origin).clone();
        finished.insert(record.clone());
        if is_copy {
            same.push(to.clone());
        }
        let published = Published { at, record, to };
        recorder.record(&match is_copy {
            true => Event::Copy(published),
            false => Event::DeadLetter(published),
        });
    }
    count
}

/// When the processes have answered that a record is to be copied or given up.
fn failures(history: &TestHistory) -> BTreeMap<Coordinates, Vec<u64>> {
    let mut failures: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let files = fs::read_dir(history.folder()).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|it| it == "jsonl")) {
        let text = fs::read_to_string(path).unwrap();
        // The first line is the header, and the last one may be incomplete.
        let complete = text.split_inclusive('\n').skip(1).filter(|line| line.ends_with('\n'));
        for line in complete.filter(|line| line.contains("\"error\"")) {
            let Event::Answer(answer) = serde_json::from_str(line).unwrap() else { continue };
            let error = answer.error.unwrap_or_default();
            let has_failed =
                ["attempt ", "no attempts left"].iter().any(|it| error.starts_with(it));
            if answer.outcome == Outcome::Error && has_failed {
                failures.entry(answer.record).or_default().push(answer.at);
            }
        }
    }
    failures
}

fn origin_of_dead_letter(message: &OwnedMessage) -> Coordinates {
    let value = |name: &str| header(message, &format!("kafka_dlt-original-{name}"));
    let topic = String::from_utf8(value("topic")).unwrap();
    let partition = i32::from_be_bytes(value("partition").try_into().unwrap());
    let offset = i64::from_be_bytes(value("offset").try_into().unwrap());
    Coordinates::new(name_in_history(message, topic), partition, offset)
}

fn origin_of_copy(message: &OwnedMessage) -> Coordinates {
    let value = |name: &str| {
        String::from_utf8(header(message, &format!("campanile-origin-{name}"))).unwrap()
    };
    let (partition, offset) =
        (value("partition").parse().unwrap(), value("offset").parse().unwrap());
    Coordinates::new(name_in_history(message, value("topic")), partition, offset)
}

/// A letter keeps the header of its record that says which of the topics with the same name it is from.
fn name_in_history(message: &OwnedMessage, topic: String) -> String {
    let mut headers = message.headers().unwrap().iter();
    let named = headers.find(|header| header.key == TOPIC_HEADER).and_then(|header| header.value);
    named.map_or(topic, |name| String::from_utf8(name.to_vec()).unwrap())
}

fn header(message: &OwnedMessage, name: &str) -> Vec<u8> {
    let mut headers = message.headers().unwrap().iter();
    let found = headers.find(|header| header.key == name);
    found.and_then(|header| header.value).unwrap_or_else(|| panic!("no header {name}")).to_vec()
}
