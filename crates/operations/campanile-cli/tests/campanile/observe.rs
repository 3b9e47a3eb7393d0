//! The verb `observe`, on a topic with planted situations.

use std::time::Duration;

use campanile_core::{
    Command, Coordinates, Details, FencingToken, Grant, IdempotencyKey, Operation, Owner, Reply,
    Retention, StoreKey,
};
use campanile_idempotency::{InspectStore, Store};
use campanile_redis::{RedisConfig, RedisStore};
use campanile_test::{KafkaServer, Message, Proxy, RedisServer, eventually, free_port};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::support::KAFKA;
use crate::{campanile, finish};

const TOPIC: &str = "observed";
const GROUP: &str = "observed-billing";
const NAMESPACE: &str = "billing.observed";
const HOUR: Duration = Duration::from_secs(3_600);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time of the first record: 2020-01-01.
const START: i64 = 1_577_836_800_000;

/// The records of partition 0: key, payload, and seconds since the first one.
const RECORDS: [(&str, &str, i64); 9] = [
    ("done", "100", 0),
    ("absent", "100", 1),
    ("died", "100", 2),
    ("failed", "100", 3),
    ("given-up", "100", 4),
    ("running", "100", 5),
    ("done", "100", 90),
    ("done", "200", 7_200),
    ("pending", "100", 7_300),
];

/// The offset of `pending`.
const COMMITTED: i64 = 8;

fn store_key(name: &str) -> StoreKey {
    let key = IdempotencyKey::new(name.to_owned()).unwrap();
    StoreKey::new(NAMESPACE.try_into().unwrap(), &key)
}

/// Leaves the entry of a record, as the observed consumer does.
async fn plant(store: &RedisStore, offset: i64, name: &str) {
    let owner = Owner::new(offset as u64 + 1).unwrap();
    let record = Coordinates { topic: TOPIC.into(), partition: 0, offset };
    let key = IdempotencyKey::new(name.to_owned()).unwrap();
    let details = Details::builder(owner).key(&key).instance("pod-7/1").coordinates(&record);
    let apply = async |operation| {
        let (key, retention) = (store_key(name), Retention::default());
        store.apply(Command { key, operation, retention }).await.unwrap().reply
    };
    let acquire = Operation::Acquire {
        owner,
        ttl: if name == "died" { Duration::from_millis(1) } else { HOUR },
        max_attempts: 8,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details: Some(details.build()),
    };
    let Reply::Acquired { token, attempt, .. } = apply(acquire).await else {
        panic!("{name} is not granted");
    };
    let grant = Grant { token, owner };
    let settle = match name {
        "done" => {
            let (fingerprint, reply, details) = (None, None, None);
            Operation::Complete { grant, attempt, fingerprint, reply, details }
        }
        "failed" => {
            let error = "card declined".into();
            Operation::Fail { grant, delay: HOUR, last: false, error }
        }
        "given-up" => Operation::GiveUp { grant, reason: "card stolen".into() },
        _ => return,
    };
    apply(settle).await;
}

/// Commits an offset of partition 0 for the group.
fn commit(topic: &str, offset: i64) {
    commit_with(&KAFKA.consumer_config(GROUP).create().unwrap(), topic, offset);
}

fn commit_with(committer: &BaseConsumer, topic: &str, offset: i64) {
    let mut committed = TopicPartitionList::new();
    committed.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    let commit = || committer.commit(&committed, CommitMode::Sync).ok();
    eventually(TIMEOUT, commit).expect("the group's coordinator starts");
}

async fn plant_all(redis: &RedisServer) {
    KAFKA.create_topic(TOPIC, 2, &[("retention.ms", "-1")]).unwrap();
    let record = |(key, payload, seconds): (&str, &str, i64)| {
        let record = Message::to(TOPIC).partition(0).header("idempotency-key", key);
        record.payload(payload).timestamp(START + seconds * 1_000)
    };
    let keyless = Message::to(TOPIC).partition(1).payload("{").timestamp(START);
    KAFKA.producer().produce_all(RECORDS.map(record).into_iter().chain([keyless])).unwrap();
    commit(TOPIC, COMMITTED);

    let config = RedisConfig::new(redis.url()).with_command_timeout(TIMEOUT);
    let store = RedisStore::connect(config).await.unwrap();
    for (offset, name) in [(0, "done"), (2, "died"), (3, "failed"), (4, "given-up"), (5, "running")]
    {
        plant(&store, offset, name).await;
    }
    // The lock expires by the store's clock.
    while {
        let died = store.inspect(&store_key("died")).await.unwrap();
        let campanile_idempotency::Found::Entry { entry, .. } = died.found else {
            panic!("absent")
        };
        entry.at() > died.now
    } {}
}

/// Runs the verb. Returns its exit code, its output and its errors.
fn observe(redis: &str, brokers: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = campanile(&["observe"]);
    command.args(arguments).env("CAMPANILE_NAMESPACE", NAMESPACE);
    // Options have precedence.
    command.env("CAMPANILE_KEY_HEADER", "idempotency-key");
    command.env("CAMPANILE_BROKERS", brokers).env("CAMPANILE_STORE", redis);
    finish(command)
}

fn findings(stdout: &str) -> (Vec<(String, String)>, Value) {
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, findings) = lines.split_last().unwrap();
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let finding = |line| (text(line, "record"), text(line, "finding"));
    (findings.iter().map(finding).collect(), summary["summary"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_reports_planted_situations() {
    let redis = RedisServer::start().unwrap();
    plant_all(&redis).await;
    let (url, brokers) = (redis.url(), KAFKA.bootstrap());
    let all = [TOPIC, "--group", GROUP, "--from", "start"];
    let entries = || redis.cli(&["DBSIZE"]).unwrap();
    let before = entries();

    let (code, stdout, stderr) = observe(&url, &brokers, &[&all[..], &["--json"]].concat());
    assert_eq!(code, Some(1), "{stderr}");
    let (found, mut summary) = findings(&stdout);
    let expected = [
        ("observed/0@1", "no_entry"),
        ("observed/0@2", "unfinished"),
        ("observed/0@3", "failed"),
        ("observed/0@4", "given_up"),
        ("observed/0@6", "repeated"),
        ("observed/0@7", "other_payload"),
        ("observed/1@0", "no_key"),
    ];
    let expected = expected.map(|(record, finding)| (record.to_owned(), finding.to_owned()));
    assert_eq!(found, expected);
    assert!(summary["earliest_entry"].take().is_string());
    let partition = |number: i32, to: i64, committed: Option<i64>| {
        json!({
            "partition": number, "from": 0, "to": to, "committed": committed, "is_beyond_end": false,
        })
    };
    let counts = json!({
        "no_entry": 1, "unfinished": 1, "failed": 1, "given_up": 1, "repeated": 1, "other_payload": 1,
        "no_key": 1,
    });
    assert_eq!(
        summary,
        json!({
            "topic": TOPIC,
            "group": GROUP,
            "partitions": [partition(0, 9, Some(COMMITTED)), partition(1, 1, None)],
            "records": 10,
            "finished": 8,
            "keys": 7,
            "completed": 1,
            "running": 1,
            "findings": counts,
            "earliest_entry": null,
        })
    );
    let died: Value = serde_json::from_str(stdout.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&died["key"], &died["entry"]["process"]), (&"died".into(), &"pod-7/1".into()));

    let (_, text, _) = observe(&url, &brokers, &all);
    for line in [
        "partition 0: offsets from 0 to before 9, committed offset 8",
        "partition 1: offsets from 0 to before 1, no committed offset",
        "       10  records with 7 keys; 8 are finished",
        "        4  lost or skipped: finished and not completed",
        "with the guard: 7 would have run, 1 would have been answered from the entry, 2 would have been refused",
        "of those refused, 1 would have been answered instead if the application does not compare payloads (`fingerprint_by`)",
        "observed/0@1  no_entry: absent  no entry: never used, or expired",
        "observed/0@6  repeated: key done of observed/0@0, 1 min 30 s apart, 6 offsets apart",
        "observed/1@0  no_key",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    assert!(text.contains("observed/0@3  failed: failed  RETRYING: the next attempt"), "{text}");

    // Nothing is changed, and no group is created.
    assert_eq!(entries(), before);
    ranges_select_records(&url, &brokers);
}

fn ranges_select_records(url: &str, brokers: &str) {
    let select = |range: &[&str]| {
        let arguments = [&[TOPIC, "--group", GROUP, "--json"], range].concat();
        let (code, stdout, stderr) = observe(url, brokers, &arguments);
        assert!(stderr.is_empty(), "{stderr}");
        let (found, summary) = findings(&stdout);
        let found = found.into_iter().map(|(record, finding)| format!("{record} {finding}"));
        let found = found.collect::<Vec<_>>().join(", ");
        (code, summary["records"].as_u64().unwrap(), found)
    };
    let found = |code, records, found: &str| (Some(code), records, found.to_owned());
    let offsets = ["--partition", "0", "--from", "2", "--to", "4"];
    assert_eq!(select(&offsets), found(1, 2, "observed/0@2 unfinished, observed/0@3 failed"));
    let times = ["--from", "2020-01-01T00:00:03.500Z", "--to", "2020-01-01T00:01:30Z"];
    assert_eq!(select(&times), found(1, 2, "observed/0@4 given_up"));
    assert_eq!(select(&["--from", "8"]), found(0, 1, ""));
    // By default, the records of the last day.
    assert_eq!(select(&[]), found(0, 0, ""));
    let pointer = ["--from", "0", "--to", "1", "--key-pointer", "/id"];
    assert_eq!(select(&pointer), found(1, 2, "observed/0@0 no_key, observed/1@0 invalid_key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_says_what_is_missing() {
    let redis = RedisServer::start().unwrap();
    let (url, brokers) = (redis.url(), KAFKA.bootstrap());
    KAFKA.create_topic("observed-never", 1, &[]).unwrap();
    let away = format!("127.0.0.1:{}", free_port().unwrap());
    let store_away = format!("redis://{away}");
    let group = ["observed-never", "--group", "nobody"];
    for (url, brokers, arguments, code, text) in [
        (
            &url,
            &brokers,
            &["observed-nowhere", "--group", "g"][..],
            2,
            "no topic `observed-nowhere`",
        ),
        (&url, &brokers, &group, 2, "the group `nobody` has committed no offset in the topic"),
        (&url, &brokers, &[&group[..], &["--partition", "7"]].concat(), 2, "no partition 7"),
        (&url, &brokers, &[&group[..], &["--from", "soon"]].concat(), 2, "a time ago such as 24h"),
        (&url, &brokers, &["observed-never"], 2, "--group"),
        // The text of the operating system's error is printed once.
        (&store_away, &brokers, &group, 3, "connect_timeout): Connection refused (os error 111)\n"),
        (&url, &away, &[&group[..], &["--timeout", "5s"]].concat(), 3, "cannot reach the brokers"),
    ] {
        let (exit, stdout, stderr) = observe(url, brokers, arguments);
        assert_eq!(exit, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(text) && stdout.is_empty(), "{arguments:?}: {stdout}{stderr}");
    }
}

/// More records than are read at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_counts_all_records_and_shows_some() {
    const KEYS: usize = 1_200;
    const MANY: &str = "observed-many";
    let redis = RedisServer::start().unwrap();
    KAFKA.create_topic(MANY, 1, &[]).unwrap();
    let record = |number: usize| {
        let key = format!("p-{}", number % KEYS);
        Message::to(MANY).partition(0).header("idempotency-key", &key).payload(key)
    };
    KAFKA.producer().produce_all((0..2 * KEYS).map(record)).unwrap();
    commit(MANY, 2 * KEYS as i64);

    let arguments = [MANY, "--group", GROUP, "--rate", "100000"];
    let (code, text, stderr) = observe(&redis.url(), &KAFKA.bootstrap(), &arguments);
    assert_eq!(code, Some(1), "{stderr}");
    for line in [
        "     2400  records with 1200 keys; 2400 are finished",
        "     1200  lost or skipped: finished and not completed",
        "no entry was found: check the namespace, where the key is, and that the consumer is observed",
        "1180 more no_entry; --json prints all",
        "1180 more repeated; --json prints all",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    let hint =
        "no record has a valid key: check where the key is (`--key-header`, `--key-pointer`)\n";
    assert!(!text.contains(hint), "{text}");
    let wrong = [&arguments[..], &["--key-header", "payment-id"]].concat();
    let (code, text, stderr) = observe(&redis.url(), &KAFKA.bootstrap(), &wrong);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(text.contains("2400  without a valid key\n") && text.contains(hint), "{text}");
    let json = [&arguments[..], &["--json"]].concat();
    let (code, stdout, stderr) = observe(&redis.url(), &KAFKA.bootstrap(), &json);
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(findings(&stdout).0.len(), 2 * KEYS);
}

/// Records of an aborted transaction are fetched and not delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_waits_while_aborted_records_are_fetched() {
    const ABORTED: &str = "observed-aborted";
    let port = free_port().unwrap();
    let proxy = Proxy::to(("127.0.0.1", port)).unwrap();
    let listener = format!("PLAINTEXT://{}", proxy.addr());
    let kafka = KafkaServer::builder().port(port).property("advertised.listeners", &listener);
    let kafka = kafka.start().unwrap();
    kafka.create_topic(ABORTED, 1, &[]).unwrap();
    let redis = RedisServer::start().unwrap();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .set("transactional.id", "t")
        .set("batch.size", "20000")
        .create()
        .unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    for (records, is_aborted) in [(1, false), (600, true), (1, false)] {
        producer.begin_transaction().unwrap();
        for _ in 0..records {
            let record = BaseRecord::<(), [u8]>::to(ABORTED).partition(0).payload(&[b'x'; 10_000]);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        match is_aborted {
            true => producer.flush(TIMEOUT).and_then(|()| producer.abort_transaction(TIMEOUT)),
            false => producer.commit_transaction(TIMEOUT),
        }
        .unwrap();
    }
    let committer: BaseConsumer = kafka.consumer_config(GROUP).create().unwrap();
    commit_with(&committer, ABORTED, 1);

    // A few records in each round trip of 50 ms, so that all of them take longer than the timeout.
    proxy.delay(Duration::from_millis(25));
    let brokers = proxy.addr().to_string();
    let arguments = [ABORTED, "--group", GROUP, "--from", "start", "--timeout", "5s", "--json"];
    let arguments = [&arguments[..], &["--kafka", "fetch.message.max.bytes=10000"]].concat();
    let (code, stdout, stderr) = observe(&redis.url(), &brokers, &arguments);
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(findings(&stdout).1["records"], 2);
}
