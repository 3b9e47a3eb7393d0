//! A store that is unavailable or slow while records keep arriving, on a real Kafka and a real
//! Redis.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod events;
#[path = "../support/group.rs"]
mod group;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/history.rs"]
mod history;
mod load;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../support/progress.rs"]
mod progress;
#[path = "../support/running_consumer.rs"]
mod running_consumer;
#[path = "../support/store.rs"]
mod store;

use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use campanile::{RedisConfig, RedisStore};
use campanile_test::history::{Cause, FaultKind, HistoryRecorder, Order};
use campanile_test::{KafkaServer, Proxy, RedisServer, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::watch;

use events::Events;
use history::{TestHistory, produce};
use load::Load;
use progress::Run;
use running_consumer::{Payment, RunningConsumer, Work};

/// Shared, because it takes a few seconds to start. A `static` is never dropped; the server's
/// process exits with ours.
static KAFKA: LazyLock<KafkaServer> = LazyLock::new(|| KafkaServer::start().unwrap());

const NAMESPACE: &str = "outage";
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long the store hangs, and how long it is down afterwards.
const HANG_DURATION: Duration = Duration::from_secs(10);
const DOWN_DURATION: Duration = Duration::from_secs(10);

#[test]
fn store_outage_costs_no_attempt_no_record_and_no_partition() {
    const TOPIC: &str = "outage";
    const PARTITIONS: i32 = 9;
    /// Gets its only record during the outage. All other partitions may be waiting for a completion
    /// to be answered, and only the acquire of another record shows that the store is unavailable.
    const IDLE_PARTITION: i32 = PARTITIONS - 1;
    const SPECIAL: [(&str, Work); 2] =
        [("until-the-stop", Work::UntilReleased), ("beyond-its-lock", Work::OutlivesLock)];
    const DURING_OUTAGE: &str = "during-the-outage";

    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let rng = fastrand::Rng::with_seed(seed);
    let events = Events::install();
    KAFKA.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    // Only `always` keeps everything that was acknowledged: it writes and syncs before the answer
    // is sent. With `everysec`, a running sync may delay the write itself, and a kill then loses
    // the write.
    let mut redis =
        RedisServer::builder().append_only(true).config("appendfsync", "always").start().unwrap();
    let (stop, stopped) = watch::channel(false);
    let config = RedisConfig::new(redis.url()).with_command_timeout(Duration::from_secs(2));
    let connect = async { RedisStore::connect(config).await.unwrap() };
    let ttl = Duration::from_secs(12); // shorter than the outage
    let history = TestHistory::new(Order::Partition, ttl);
    let serving = serve(TOPIC, ttl, connect, &history, &stopped);

    let load = Load::start(&KAFKA, TOPIC, IDLE_PARTITION, rng, history.recorder.clone());
    wait_for("200 handlers have started", || history.progress().runs().len() > 200);
    for ((id, work), partition) in SPECIAL.into_iter().zip(0..) {
        let payment = Payment { id: id.to_owned(), work };
        produce(&history.recorder, KAFKA.producer(), TOPIC, [payment.message(TOPIC, partition)]);
    }
    wait_for("the special handlers have started", || {
        let progress = history.progress();
        SPECIAL.iter().all(|(id, _)| progress.runs().iter().any(|run| run.key() == *id))
    });

    let members = member_ids(&KAFKA, TOPIC);
    let noticed = || {
        ["the store is unavailable", "the store is available again"].map(|it| events.count(&[it]))
    };
    let before = noticed();
    let started = history.recorder.now();
    redis.pause().unwrap();
    stop.send(true).unwrap();
    let payment = Payment { id: DURING_OUTAGE.to_owned(), work: Work::Normal };
    let message = payment.message(TOPIC, IDLE_PARTITION);
    produce(&history.recorder, KAFKA.producer(), TOPIC, [message]);
    thread::sleep(HANG_DURATION);
    redis.kill().unwrap();
    thread::sleep(DOWN_DURATION);
    let ended = history.recorder.now();
    redis.restart().unwrap();
    let restarted = history.recorder.now();
    history.recorder.fault(started, Some(restarted), FaultKind::StoreUnavailable);
    wait_for("a handler starts after the outage", || first_begin_after(&history, ended).is_some());
    let began = first_begin_after(&history, ended).expect("a handler has started");
    println!(
        "away for {:?}, the first record {:?} after the restart",
        Duration::from_micros(ended - started),
        Duration::from_micros(began.saturating_sub(restarted)),
    );
    let normal = load.stop();
    group::wait_until_committed(&KAFKA.consumer_config(TOPIC), TOPIC, PARTITIONS, TIMEOUT);

    // The driver noticed the outage, but the group did not: no member joined, left or rejoined.
    assert_eq!(noticed(), before.map(|count| count + 1));
    assert_eq!(events.count(&["partitions assigned", TOPIC]), 1);
    assert_eq!(events.count(&["partitions revoked", TOPIC]), 0);
    assert_eq!((members.len(), &members), (1, &member_ids(&KAFKA, TOPIC)));
    let summary = serving.stop();
    // Nothing is lost (everything is committed), given up or failed.
    let received = summary.received;
    assert_eq!(
        (summary.processed, summary.revoked, summary.unfinished),
        (received, 0, 0),
        "{summary:?}"
    );
    assert_eq!((summary.skipped, summary.retried), (0, 0), "{summary:?}");
    let keys = (0..normal).map(|number| Payment::normal(number).id);
    let special = SPECIAL.iter().map(|(id, _)| *id).chain([DURING_OUTAGE]);
    let keys = keys.chain(special.map(str::to_owned));
    record_end(&history, TOPIC, &redis, keys);
    let mut report = history.judge(&[Cause::StoreUnavailable]);
    let again: Vec<_> = report.verdict.reruns.iter().map(|rerun| rerun.key.clone()).collect();
    report.expect(again == ["beyond-its-lock"], || {
        format!("not only the handler that outlives its lock runs again: {again:?}")
    });
    let is_first = |run: &Run| run.begin.attempt == Some(1);
    let counted = !history.progress().runs().iter().all(is_first);
    report.expect(!counted, || "the outage has counted an attempt".into());
    // Records answered just before may still have started, but no others without the store.
    let without_store = started + 5_000_000..ended;
    let begun = begins(&history).into_iter().filter(|at| without_store.contains(at)).count();
    report.expect(begun == 0, || format!("{begun} handlers have started without the store"));
    report.finish("outage", format_args!("{} waits; seed {seed}", summary.inconclusive));
}

#[test]
fn slow_store_within_timeout_is_not_considered_down() {
    const TOPIC: &str = "slow";
    const PARTITIONS: i32 = 8;
    const RECORDS_PER_PARTITION: usize = 8;
    /// The delay of a request, and of its reply.
    const DELAY: Duration = Duration::from_millis(150);

    KAFKA.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    let keys = RECORDS_PER_PARTITION * PARTITIONS as usize;
    let messages = (0..keys).zip((0..PARTITIONS).cycle());
    let messages = messages.map(|(n, partition)| Payment::normal(n).message(TOPIC, partition));
    let ttl = Duration::from_secs(30);
    let history = TestHistory::new(Order::Partition, ttl);
    produce(&history.recorder, KAFKA.producer(), TOPIC, messages);
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let (_stop, stopped) = watch::channel(false);
    let connect = async {
        // A busy machine adds to the delay, which must not change what this test measures.
        let config = RedisConfig::new(redis.url_through(proxy.addr()));
        let config = config.with_command_timeout(Duration::from_secs(4));
        let store = RedisStore::connect(config).await.unwrap();
        proxy.delay(DELAY);
        store
    };
    let start = history.recorder.now();
    let serving = serve(TOPIC, ttl, connect, &history, &stopped);
    group::wait_until_committed(&KAFKA.consumer_config(TOPIC), TOPIC, PARTITIONS, TIMEOUT);
    let took = Duration::from_micros(history.recorder.now() - start);
    let summary = serving.stop();

    println!("{keys} keys in {took:?}, {summary:?}");
    // An acquire and a completion for each record, one record at a time per partition.
    assert!(took > DELAY * 2 * 2 * RECORDS_PER_PARTITION as u32, "{took:?}: not slow");
    // If the store were considered down, records would wait.
    assert_eq!((summary.inconclusive, summary.retried, summary.skipped), (0, 0, 0));
    assert_eq!((summary.received, summary.processed), (keys as u64, keys as u64));
    record_end(&history, TOPIC, &redis, (0..keys).map(|number| Payment::normal(number).id));
    history.judge(&[]).finish("slow store", format_args!("{took:?}"));
}

/// Records the commits, and the entries of these keys.
fn record_end(
    history: &TestHistory,
    topic: &str,
    redis: &RedisServer,
    keys: impl Iterator<Item = String>,
) {
    let recorder = &history.recorder;
    recorder.record_commits(&KAFKA.consumer_config(topic), topic).unwrap();
    let (since, entries) = (recorder.now(), store::read_entries([redis], NAMESPACE));
    keys.for_each(|key| recorder.entry(since, &key, entries.get(&key)));
}

fn serve(
    topic: &str,
    lock_ttl: Duration,
    store: impl Future<Output = RedisStore>,
    history: &TestHistory,
    stopped: &watch::Receiver<bool>,
) -> RunningConsumer {
    let mut config = KAFKA.consumer_config(topic);
    // An outage lasts longer: a consumer that stopped polling would lose its partitions.
    config.set("max.poll.interval.ms", "10000").set("session.timeout.ms", "10000");
    let consumer = campanile::Consumer::new(config).unwrap().subscribe([topic]);
    let recorder = HistoryRecorder::create(history.folder(), "consumer", None).unwrap();
    RunningConsumer::start(consumer, NAMESPACE, lock_ttl, store, &recorder, stopped)
}

/// Lists the ids of the group's members. A member that rejoins gets a new id.
fn member_ids(kafka: &KafkaServer, group: &str) -> Vec<String> {
    let consumer: BaseConsumer = kafka.consumer_config(group).create().unwrap();
    let list = consumer.fetch_group_list(Some(group), Duration::from_secs(10)).unwrap();
    list.groups().iter().flat_map(|group| group.members()).map(|m| m.id().to_owned()).collect()
}

/// Finds the start of the first handler after this time.
fn first_begin_after(history: &TestHistory, time: u64) -> Option<u64> {
    begins(history).into_iter().filter(|at| *at > time).min()
}

/// When the handlers have started.
fn begins(history: &TestHistory) -> Vec<u64> {
    history.progress().runs().iter().map(|run| run.begin.at).collect()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    eventually(TIMEOUT, || condition().then_some(()))
        .unwrap_or_else(|| panic!("timed out after {TIMEOUT:?} waiting until {what}"));
}
