//! Processes that are stopped and killed while they consume from a real Kafka.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
#[path = "../support/history.rs"]
mod history;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
#[path = "../support/store.rs"]
mod store;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/worker.rs"]
mod worker;

use std::time::Duration;

use campanile::store::State;
use campanile_test::history::{Cause, Event, History, Order, Outcome};
use campanile_test::{KafkaServer, Message, RedisServer, eventually};

use history::TestHistory;
use progress::{Progress, Run};
use worker::Worker;

const TOPIC: &str = "payments";
const GROUP: &str = "payments";
const PARTITIONS: i32 = 6;
const RECORDS: usize = 20_000;
/// One in ten records repeats the key of another.
const KEYS: usize = RECORDS / 10 * 9;
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn stop_and_kill_lose_no_key_and_only_the_kill_repeats_keys() {
    let kafka = KafkaServer::start().unwrap();
    let redis = RedisServer::start().unwrap();
    kafka.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let history = TestHistory::new(Order::Partition, Duration::from_secs(10));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    produce(&kafka, &history, fastrand::Rng::with_seed(seed));
    let (bootstrap, url) = (kafka.bootstrap(), redis.url());
    // So long that a busy machine hardly ever misses them.
    let options = ["lock_ms=10000", "session.timeout.ms=10000", "heartbeat.interval.ms=300"];
    let start = || Worker::spawn(&bootstrap, GROUP, TOPIC, &url, &history, &options);
    let (stopped, mut killed, survivor) = (start(), start(), start());

    // All three have processed records, so that each has partitions to lose.
    let names = [stopped.name(), killed.name(), survivor.name()];
    wait_for(&history, "all workers process records", |progress| {
        names.iter().all(|name| progress.runs_of(name).any(|run| run.has_effect))
    });
    wait_for(&history, "a quarter of the records is processed", |progress| {
        progress.answered() > RECORDS / 4
    });
    stopped.stop();
    wait_for(&history, "half of the records are processed", |progress| {
        progress.answered() > RECORDS / 2
    });
    let unrecorded = pause_between_effect_and_record(&mut killed, &history, &redis);
    let (killed_name, survivor_name) = (killed.name().to_owned(), survivor.name().to_owned());
    killed.kill(&history);
    let (since, entries) = (history.recorder.now(), store::read_entries([&redis], "payments"));
    history.record_entries_after_kill(since, &killed_name, |key| entries.get(key));

    group::wait_until_committed(&kafka.consumer_config(GROUP), TOPIC, PARTITIONS, TIMEOUT);
    survivor.stop();
    history.recorder.record_commits(&kafka.consumer_config(GROUP), GROUP).unwrap();
    let (since, entries) = (history.recorder.now(), store::read_entries([&redis], "payments"));
    for key in (0..KEYS).map(|number| format!("p-{number}")) {
        history.recorder.entry(since, &key, entries.get(&key));
    }

    let mut report = history.judge(&[Cause::KilledBeforeEffect, Cause::KilledAfterEffect]);
    let is_unrecorded = report
        .verdict
        .reruns
        .iter()
        .any(|rerun| (&*rerun.key, rerun.cause) == (&*unrecorded, Cause::KilledAfterEffect));
    report.expect(is_unrecorded, || format!("the unrecorded effect of {unrecorded} runs again"));
    let duplicates = duplicates(&history, &survivor_name);
    report.expect(duplicates > 0, || "the survivor got no duplicates".into());
    report.finish("crash", format_args!("{duplicates} duplicates at the survivor; seed {seed}"));
}

/// Pauses the worker when it has an effect that is not recorded, and returns the effect's key.
fn pause_between_effect_and_record(
    worker: &mut Worker,
    history: &TestHistory,
    redis: &RedisServer,
) -> String {
    let find_unrecorded = || {
        worker.pause(history);
        let entries = store::read_entries([redis], "payments");
        let is_unrecorded = |run: &&Run| {
            let entry = entries.get(run.key()).filter(|entry| entry.state() == State::Processing);
            run.has_effect && entry.is_some_and(|entry| run.has_token(entry))
        };
        let progress = history.progress();
        let found = progress.runs_of(worker.name()).find(is_unrecorded);
        let found = found.map(|run| run.key().to_owned());
        if found.is_none() {
            worker.resume(history);
        }
        found
    };
    eventually(TIMEOUT, find_unrecorded).expect("the worker has an unrecorded effect")
}

/// Counts the records that were answered to this process as duplicates.
fn duplicates(history: &TestHistory, process: &str) -> usize {
    let history = History::read(history.folder()).unwrap();
    let of_process = history.events().filter(|(name, _)| *name == process);
    let duplicate = |(_, event): &(&str, &Event)| matches!(event, Event::Answer(answer) if answer.outcome == Outcome::Duplicate);
    of_process.filter(duplicate).count()
}

fn produce(kafka: &KafkaServer, history: &TestHistory, mut rng: fastrand::Rng) {
    let mut numbers: Vec<usize> = (0..KEYS).collect();
    numbers.extend((KEYS..RECORDS).map(|_| rng.usize(..KEYS)));
    rng.shuffle(&mut numbers);
    let payments = numbers.iter().map(|number| {
        let id = format!("p-{number}");
        let payload = serde_json::json!({ "id": id }).to_string();
        // In any partition, so that repeats of a key also meet across partitions.
        let message = Message::to(TOPIC).partition(rng.i32(0..PARTITIONS));
        (message.key(&*id).payload(payload), id, None)
    });
    history::produce(&history.recorder, kafka.producer(), TOPIC, payments);
}

fn wait_for(history: &TestHistory, what: &str, condition: impl Fn(&Progress) -> bool) {
    let reached = || condition(&history.progress()).then_some(());
    eventually(TIMEOUT, reached)
        .unwrap_or_else(|| panic!("timed out after {TIMEOUT:?} waiting until {what}"));
}
