//! Processes that are stopped and killed while they consume from a real Kafka.
#![expect(clippy::unwrap_used, reason = "test helpers")]

#[path = "../support/group.rs"]
mod group;
mod ledger;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/worker.rs"]
mod worker;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use campanile::store::{Entry, State};
use campanile_test::{KafkaServer, Message, Process, RedisServer, eventually};
use tempfile::TempDir;

use ledger::{Answer, Ledger, Run};

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
    produce(&kafka);
    let folder = TempDir::new().unwrap();
    let worker = || {
        worker::spawn(
            &kafka.bootstrap(),
            GROUP,
            TOPIC,
            &redis.url(),
            &folder,
            worker::SHORT_SESSION,
        )
    };
    let (mut stopped, mut killed, mut survivor) = (worker(), worker(), worker());

    // All three have processed records, so that each has partitions to lose.
    let pids = [stopped.pid(), killed.pid(), survivor.pid()];
    wait_for(&folder, "all workers process records", |ledger| {
        pids.iter().all(|pid| ledger.runs().any(|run| run.pid == *pid))
    });
    wait_for(&folder, "a quarter of the records is processed", |ledger| {
        ledger.runs().count() > RECORDS / 4
    });
    let status = stopped.terminate().unwrap();
    assert!(status.success(), "{status}: {}", stopped.log().unwrap());

    wait_for(&folder, "half of the records are processed", |ledger| {
        ledger.runs().count() > RECORDS / 2
    });
    let unrecorded = kill_between_effect_and_record(&mut killed, &folder, &redis);
    // A lock is taken over only after it has expired, so these are the entries as the kill left
    // them.
    let at_kill = store::read_entries([&redis], "payments");

    group::wait_until_committed(&kafka.consumer_config(GROUP), TOPIC, PARTITIONS, TIMEOUT);
    let status = survivor.terminate().unwrap();
    assert!(status.success(), "{status}: {}", survivor.log().unwrap());

    let ledger = Ledger::read(&folder);
    let effects = ledger.runs().filter(|run| run.key == unrecorded).count();
    assert_eq!(effects, 2, "an unrecorded effect runs again");
    check_ledger(&ledger, &pids, &at_kill);
}

/// Kills the worker when it has an effect that is not recorded, and returns the effect's key. The
/// worker is paused during the search, so that the kill hits the effect that was found.
fn kill_between_effect_and_record(
    worker: &mut Process,
    folder: &TempDir,
    redis: &RedisServer,
) -> String {
    let pid = worker.pid();
    let find_unrecorded = || {
        worker.pause().unwrap();
        let entries = store::read_entries([redis], "payments");
        let is_unrecorded = |run: &&Run| {
            let entry = entries.get(&run.key).filter(|entry| entry.state() == State::Processing);
            run.pid == pid && entry.is_some_and(|entry| entry.token().get() == run.token)
        };
        let found = Ledger::read(folder).runs().find(is_unrecorded).map(|run| run.key.clone());
        if found.is_none() {
            worker.resume().unwrap();
        }
        found
    };
    let key = eventually(TIMEOUT, find_unrecorded).expect("the worker has an unrecorded effect");
    worker.kill().unwrap();
    key
}

fn check_ledger(ledger: &Ledger, [_, killed, survivor]: &[u32; 3], at_kill: &store::Entries) {
    let mut runs: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for run in ledger.runs() {
        runs.entry(&run.key).or_default().push(run);
    }
    assert_eq!(runs.len(), KEYS, "every key was processed");
    let twice: Vec<_> = runs.iter().filter(|(_, runs)| runs.len() > 1).collect();
    for (key, runs) in &twice {
        assert!(
            runs.iter().any(|run| run.pid == *killed),
            "{key} ran twice, but never in the killed process: {runs:?}"
        );
        let state = at_kill.get(key).map(Entry::state);
        assert_ne!(state, Some(State::Completed), "{key} was completed before the kill: {runs:?}");
        let (first, second) = (runs[0], runs[1]);
        assert_eq!((runs.len(), first.attempt + 1), (2, second.attempt), "{key}: {runs:?}");
        assert!(first.token < second.token, "{key}: {runs:?}");
        assert!(first.end <= second.start, "{key}: {runs:?}");
    }

    // Of the answered deliveries, at most one of each key was processed by the survivor.
    let (mut processed, mut duplicates) = (HashSet::new(), 0);
    for (pid, answer) in ledger.answers() {
        if pid == *survivor {
            match answer {
                Answer::Processed(key) => assert!(processed.insert(key), "{key} processed again"),
                Answer::Duplicate => duplicates += 1,
            }
        }
    }
    assert!(duplicates > 0, "the survivor got no duplicates");
    let answered = ledger.answers().filter(|(_, answer)| matches!(answer, Answer::Processed(_)));
    assert!(answered.count() <= ledger.runs().count(), "nothing is processed without a run");
    println!(
        "{KEYS} keys, {} runs, {} keys twice, {} answered by the survivor, {duplicates} as duplicates",
        ledger.runs().count(),
        twice.len(),
        processed.len() + duplicates,
    );
}

fn produce(kafka: &KafkaServer) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut numbers: Vec<usize> = (0..KEYS).collect();
    numbers.extend((KEYS..RECORDS).map(|_| rng.usize(..KEYS)));
    rng.shuffle(&mut numbers);
    let messages = numbers.iter().map(|number| {
        let id = format!("p-{number}");
        let payload = serde_json::json!({ "id": id }).to_string();
        // In any partition, so that repeats of a key also meet across partitions.
        Message::to(TOPIC).partition(rng.i32(0..PARTITIONS)).key(id).payload(payload)
    });
    kafka.producer().produce_all(messages).unwrap();
}

fn wait_for(folder: &TempDir, what: &str, condition: impl Fn(&Ledger) -> bool) {
    let reached = || condition(&Ledger::read(folder)).then_some(());
    eventually(TIMEOUT, reached)
        .unwrap_or_else(|| panic!("timed out after {TIMEOUT:?} waiting until {what}"));
}
