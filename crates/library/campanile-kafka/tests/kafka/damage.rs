//! Partitions with a closed segment that was damaged on the broker's disk.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use campanile_test::{KafkaServer, Message, eventually};

use crate::captured_log::CapturedLog;
use crate::real::{blocking, logging};
use crate::support::{Log, TIMEOUT, committed, consumer, serve, until_committed};

/// Each record is a tenth of a segment, and a batch of its own.
const RECORDS: i64 = 25;

/// The offset of the damaged batch, in the middle of the first segment.
const DAMAGED: i64 = 5;

/// Damage to one byte of a batch, with its position there.
#[derive(Clone, Copy)]
struct Damage {
    topic: &'static str,
    position: usize,
}

const LENGTH: Damage = Damage { topic: "length", position: 8 };
const VERSION: Damage = Damage { topic: "version", position: 16 };
const PAYLOAD: Damage = Damage { topic: "payload", position: 1_000 };

/// Starts a server with a topic for each damage. The bytes are changed while it is down.
async fn server(damages: &'static [Damage]) -> KafkaServer {
    let start = move || {
        let builder =
            KafkaServer::builder().property("log.flush.offset.checkpoint.interval.ms", "100");
        let mut kafka = builder.start().unwrap();
        for &Damage { topic, .. } in damages {
            fill(&kafka, topic);
            wait_for_checkpoint(&kafka.segment(topic, 0), topic);
        }
        kafka.kill().unwrap();
        for &Damage { topic, position } in damages {
            apply_damage(&kafka.segment(topic, 0), position);
        }
        kafka.restart().unwrap();
        kafka
    };
    blocking(start).await
}

fn fill(kafka: &KafkaServer, topic: &str) {
    kafka.create_topic(topic, 1, &[("segment.bytes", "1048576")]).unwrap();
    for _ in 0..RECORDS {
        let message = Message::to(topic).partition(0).payload(vec![b'x'; 100_000]);
        kafka.producer().produce(message).unwrap();
    }
}

/// Waits until the broker relies on the first segment after a crash. It would examine the segment
/// otherwise, and end the partition at the damage.
fn wait_for_checkpoint(segment: &Path, topic: &str) {
    let folder = segment.parent().unwrap().parent().unwrap();
    let first = format!("{topic} 0 ");
    let has_flushed = || {
        let text = fs::read_to_string(folder.join("recovery-point-offset-checkpoint")).ok()?;
        let offset = text.lines().find_map(|line| line.strip_prefix(&first))?;
        (offset.parse::<i64>().ok()? > DAMAGED).then_some(())
    };
    eventually(TIMEOUT, has_flushed).expect("the broker flushes a closed segment");
}

fn apply_damage(segment: &Path, position: usize) {
    let bytes = fs::read(segment).unwrap();
    // A batch begins with its first offset (8 bytes) and the length of the rest (4 bytes).
    let mut at = 0;
    while bytes[at..at + 8] != DAMAGED.to_be_bytes() {
        let length = bytes[at + 8..at + 12].try_into().unwrap();
        at += 12 + u32::from_be_bytes(length) as usize;
    }
    let at = at + position;
    let file = fs::OpenOptions::new().write(true).open(segment).unwrap();
    file.write_all_at(&[bytes[at] ^ 0x40], at as u64).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_batch_in_closed_segment_ends_serving_there() {
    let kafka = server(&[PAYLOAD, VERSION]).await;
    for (Damage { topic, .. }, reason) in [(PAYLOAD, "CRC32C"), (VERSION, "MagicByte")] {
        let config = kafka.consumer_config(topic);
        let log = Log::default();
        let serving = serve(consumer(config.clone(), topic), logging(&log));
        let error = serving.ended().await.unwrap_err().to_string();
        for part in [&format!("partition 0 of `{topic}`"), reason, "offset past them"] {
            assert!(error.contains(part), "{error}");
        }
        // The records before the damaged batch have been processed, or not yet.
        let before = log.of(0);
        assert_eq!(before, (0..before.len() as i64).collect::<Vec<_>>(), "{topic}");
        let at = blocking(move || committed(&config, topic, 1)).await[0];
        assert_eq!(at.unwrap_or_default(), before.len() as i64, "{topic}");
        assert!(before.len() as i64 <= DAMAGED, "{topic}: {before:?}");
    }

    // Without the checks, the damaged record is processed like the others.
    let mut config = kafka.consumer_config("unchecked");
    config.set("check.crcs", "false");
    let log = Log::default();
    let serving = serve(consumer(config.clone(), PAYLOAD.topic), logging(&log));
    until_committed(&config, PAYLOAD.topic, &[RECORDS]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), (0..RECORDS).collect::<Vec<_>>());
}

/// The broker does not find the batches behind it, and answers with those of the next segment. For
/// a consumer, this is the same as the gap in a compacted topic.
// A single-threaded runtime, because only the test's own thread and the driver's have the subscriber.
#[tokio::test(flavor = "current_thread")]
async fn damaged_batch_length_hides_rest_of_its_segment() {
    let kafka = server(&[LENGTH]).await;
    let second = second_segment(&kafka.segment(LENGTH.topic, 0));
    assert!((DAMAGED + 1..RECORDS).contains(&second), "{second}");
    let config = kafka.consumer_config(LENGTH.topic);
    let log = Log::default();
    let (events, _guard) = CapturedLog::start();
    let serving = serve(consumer(config.clone(), LENGTH.topic), logging(&log));
    until_committed(&config, LENGTH.topic, &[RECORDS]).await;
    serving.stop().await.unwrap();
    assert_eq!(log.of(0), (0..DAMAGED).chain(second..RECORDS).collect::<Vec<_>>());
    assert!(!events.lines("INFO", "").is_empty(), "nothing was captured");
    for level in ["WARN", "ERROR"] {
        // A busy broker may answer the first request late.
        let mut lines = events.lines(level, "").into_iter();
        assert!(lines.all(|line| line.contains("no broker answered")), "{}", events.text());
    }
}

/// The first offset of the second segment, which is the name of its file.
fn second_segment(first: &Path) -> i64 {
    let files = fs::read_dir(first.parent().unwrap()).unwrap();
    let offset = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok();
    let mut offsets: Vec<_> = files.filter_map(|file| offset(&file.unwrap().path())).collect();
    offsets.sort_unstable();
    offsets[1]
}
