//! A store that is unavailable or slow while records keep arriving, on a real Kafka and a real
//! Redis.
#![expect(clippy::unwrap_used, reason = "test helpers")]

mod events;
#[path = "../support/group.rs"]
mod group;
#[path = "../support/ledger.rs"]
mod ledger;
mod load;
#[path = "../support/running_consumer.rs"]
mod running_consumer;
#[path = "../support/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use campanile::store::State;
use campanile::{RedisConfig, RedisStore, lock::LostCause};
use campanile_test::{KafkaServer, Proxy, RedisServer, eventually};
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::watch;

use events::Events;
use ledger::{Ledger, Run, RunEnd, now};
use load::Load;
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
    const PARTITIONS: i32 = 8;
    const SPECIAL: [(&str, Work); 2] =
        [("until-the-stop", Work::UntilReleased), ("beyond-its-lock", Work::OutlivesLock)];

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
    let ledger = Ledger::default();
    let (stop, stopped) = watch::channel(false);
    let connect = async { RedisStore::connect(redis.url()).await.unwrap() };
    let ttl = Duration::from_secs(5); // shorter than the outage
    let serving = serve(TOPIC, ttl, connect, &ledger, &stopped);

    let load = Load::start(&KAFKA, TOPIC, PARTITIONS, rng);
    wait_for("200 handlers have started", || ledger.with_runs(<[Run]>::len) > 200);
    for ((id, work), partition) in SPECIAL.into_iter().zip(0..) {
        let payment = Payment { id: id.to_owned(), work };
        KAFKA.producer().produce(payment.message(TOPIC, partition)).unwrap();
    }
    wait_for("the special handlers have started", || {
        let by_key = runs_by_key(&ledger);
        SPECIAL.iter().all(|(id, _)| by_key.contains_key(*id))
    });

    let members = member_ids(&KAFKA, TOPIC);
    redis.pause().unwrap();
    let started = now();
    stop.send(true).unwrap();
    thread::sleep(HANG_DURATION);
    redis.kill().unwrap();
    thread::sleep(DOWN_DURATION);
    let ended = now();
    redis.restart().unwrap();
    let restarted = now();
    wait_for("a handler starts after the outage", || first_start_after(&ledger, ended).is_some());
    let took = first_start_after(&ledger, ended).map(|began| began.saturating_sub(restarted));
    println!("away for {:?}, the first record {took:?} after the restart", ended - started);
    let keys = load.stop() + SPECIAL.len();
    group::wait_until_committed(&KAFKA.consumer_config(TOPIC), TOPIC, PARTITIONS, TIMEOUT);

    // The driver noticed the outage, but the group did not: no member joined, left or rejoined.
    assert_eq!(events.count(&["the store is unavailable"]), 1);
    assert_eq!(events.count(&["the store is available again"]), 1);
    assert_eq!((events.count(&["assigned", TOPIC]), events.count(&["revoked", TOPIC])), (1, 0));
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
    let twice = Outage { started, ended }.check(&ledger);
    check_entries(&redis, &ledger, keys);
    println!(
        "{keys} keys, {received} records, {} waits, begun twice: {twice:?}",
        summary.inconclusive
    );
    assert_eq!(twice, ["beyond-its-lock"], "only this handler outlived its lock");
}

struct Outage {
    started: Duration,
    ended: Duration,
}

impl Outage {
    /// Checks that every handler finished once, in its first attempt. Handlers that started twice
    /// were in flight when the store became unavailable, and had lost their lock when they were
    /// dropped.
    fn check(&self, ledger: &Ledger) -> Vec<String> {
        let mut twice = Vec::new();
        for (key, runs) in runs_by_key(ledger) {
            assert_eq!(runs.iter().filter_map(Run::finished_at).count(), 1, "{key}: {runs:?}");
            assert!(runs.iter().all(|run| run.attempt == 1), "{key}: {runs:?}");
            for (dropped, next) in runs.iter().zip(&runs[1..]) {
                let RunEnd::Dropped(at, Some(lost)) = &dropped.end else {
                    panic!("{key}: {runs:?}");
                };
                assert_eq!(lost.cause, LostCause::Expired);
                let was_in_flight = dropped.started < self.started && self.started < *at;
                assert!(was_in_flight && self.ended < next.started, "{key}: {runs:?}");
                assert!(dropped.token < next.token, "{key}: {runs:?}");
                twice.push(key.clone());
            }
        }
        // Records answered just before may still have started, but no others without the store.
        let outage_window = self.started + Duration::from_secs(5)..self.ended;
        let started_in_window =
            |runs: &[Run]| runs.iter().find(|run| outage_window.contains(&run.started)).cloned();
        let started = ledger.with_runs(started_in_window);
        assert!(started.is_none(), "{started:?}");
        twice
    }
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
    KAFKA.producer().produce_all(messages).unwrap();
    let redis = RedisServer::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let ledger = Ledger::default();
    let (_stop, stopped) = watch::channel(false);
    let connect = async {
        // A busy machine adds to the delay, which must not change what this test measures.
        let config = RedisConfig::new(redis.url_through(proxy.addr()));
        let config = config.with_command_timeout(Duration::from_secs(4));
        let store = RedisStore::connect(config).await.unwrap();
        proxy.delay(DELAY);
        store
    };
    let start = now();
    let ttl = Duration::from_secs(30);
    let serving = serve(TOPIC, ttl, connect, &ledger, &stopped);
    group::wait_until_committed(&KAFKA.consumer_config(TOPIC), TOPIC, PARTITIONS, TIMEOUT);
    let took = now() - start;
    let summary = serving.stop();

    println!("{keys} keys in {took:?}, {summary:?}");
    // An acquire and a completion for each record, one record at a time per partition.
    assert!(took > DELAY * 2 * 2 * RECORDS_PER_PARTITION as u32, "{took:?}: not slow");
    // If the store were considered down, records would wait.
    assert_eq!((summary.inconclusive, summary.retried, summary.skipped), (0, 0, 0));
    assert_eq!((summary.received, summary.processed), (keys as u64, keys as u64));
    assert_eq!(ledger.with_runs(<[Run]>::len), keys);
    check_entries(&redis, &ledger, keys);
}

/// Checks that every key was processed and is COMPLETED by its first attempt.
fn check_entries(redis: &RedisServer, ledger: &Ledger, keys: usize) {
    let by_key = runs_by_key(ledger);
    assert_eq!(by_key.len(), keys);
    let entries = store::read_entries([redis], NAMESPACE);
    for (key, runs) in by_key {
        let entry = entries.get(&key).unwrap();
        assert_eq!((entry.state(), entry.attempt()), (State::Completed, 1), "{key}: {runs:?}");
        assert_eq!(Some(entry.token().get()), runs.last().map(|run| run.token), "{key}: {runs:?}");
    }
}

fn serve(
    topic: &str,
    lock_ttl: Duration,
    store: impl Future<Output = RedisStore>,
    ledger: &Ledger,
    stopped: &watch::Receiver<bool>,
) -> RunningConsumer {
    let mut config = KAFKA.consumer_config(topic);
    // An outage lasts much longer: a consumer that stopped polling would lose its partitions.
    config.set("max.poll.interval.ms", "5000");
    let consumer = campanile::Consumer::new(config).unwrap().subscribe([topic]);
    RunningConsumer::start(consumer, NAMESPACE, lock_ttl, store, ledger, stopped)
}

/// Groups the runs by key, in the order in which they started.
fn runs_by_key(ledger: &Ledger) -> BTreeMap<String, Vec<Run>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for run in ledger.with_runs(<[Run]>::to_vec) {
        by_key.entry(run.key.clone()).or_default().push(run);
    }
    by_key
}

/// Lists the ids of the group's members. A member that rejoins gets a new id.
fn member_ids(kafka: &KafkaServer, group: &str) -> Vec<String> {
    let consumer: BaseConsumer = kafka.consumer_config(group).create().unwrap();
    let list = consumer.fetch_group_list(Some(group), Duration::from_secs(10)).unwrap();
    list.groups().iter().flat_map(|group| group.members()).map(|m| m.id().to_owned()).collect()
}

/// Finds the start of the first handler after this time.
fn first_start_after(ledger: &Ledger, time: Duration) -> Option<Duration> {
    ledger.with_runs(|runs| {
        runs.iter().map(|run| run.started).filter(|started| *started > time).min()
    })
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    eventually(TIMEOUT, || condition().then_some(()))
        .unwrap_or_else(|| panic!("timed out after {TIMEOUT:?} waiting until {what}"));
}
