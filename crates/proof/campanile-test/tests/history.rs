//! Histories of stacks.
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    BoxError, DecodeLayer, IdempotencyKey, Namespace, Record, Request, StoreKey, key,
};
use campanile_idempotency::{
    Found, IdempotencyConfig, IdempotencyLayer, InspectStore, LockKeeper, MemoryStore,
};
use campanile_test::TestClock;
use campanile_test::history::{
    Cause, Event, History, HistoryRecorder, How, Order, Outcome, Rule, Settings, TOPIC_HEADER,
    judge,
};
use tokio::sync::Notify;
use tower::{Service, ServiceBuilder, ServiceExt};

const LOCK_TTL: Duration = Duration::from_secs(30);

fn recorder(folder: &Path, clock: &TestClock) -> HistoryRecorder {
    let lock_ttl = LOCK_TTL.as_micros() as u64;
    let settings =
        Settings { order: Order::None, lock_ttl, max_hold: None, transactions: None, tolerance: 0 };
    let clock = clock.keeper_clock();
    HistoryRecorder::with_clock(folder, "test", Some(settings), clock).unwrap()
}

fn record(offset: i64, body: &'static str) -> Record {
    Record::builder("jobs", 0, offset).payload(body).build()
}

/// Creates a stack with a handler that does what the body of the record says.
fn stack(
    history: &HistoryRecorder,
    clock: &TestClock,
    store: &MemoryStore,
    started: Arc<Notify>,
) -> impl Service<
    Record,
    Response = campanile_core::Outcome<()>,
    Error = BoxError,
    Future: Send + 'static,
> + Clone
+ use<> {
    let (keeper, task) = LockKeeper::pair(store.clone(), clock.keeper_clock());
    tokio::spawn(task);
    let config = IdempotencyConfig::new("jobs").with_lock_ttl(LOCK_TTL);
    let effects = history.clone();
    let handler = move |request: Request<String>| {
        let (effects, started) = (effects.clone(), started.clone());
        async move {
            match request.body().split('-').next() {
                Some("fail") if request.lock().is_ok_and(|lock| lock.attempt() == 1) => {
                    Err("declined".into())
                }
                Some("panic") => panic!("injected panic"),
                Some("hang") => {
                    started.notify_one();
                    std::future::pending().await
                }
                _ => {
                    effects.effect(&request);
                    Ok::<_, BoxError>(())
                }
            }
        }
    };
    ServiceBuilder::new()
        .layer(history.answers())
        .layer(DecodeLayer::json())
        .layer(IdempotencyLayer::new(&keeper, config, key::field(|id: &String| id)).unwrap())
        .layer(history.runs())
        .service_fn(handler)
}

#[tokio::test(start_paused = true)]
async fn stack_records_runs_effects_ends_and_answers() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
    let history = recorder(folder.path(), &clock);
    let store = MemoryStore::with_clock(clock.store_clock());
    let stack = stack(&history, &clock, &store, Arc::default());
    for (offset, body) in [(0, r#""p-1""#), (1, r#""fail-2""#), (2, r#""p-1""#), (3, "no JSON")] {
        history.sent(history.now(), record(offset, body).coordinates(), None, None);
        drop(stack.clone().oneshot(record(offset, body)).await);
    }
    // After its backoff, the failed record succeeds.
    tokio::time::sleep(Duration::from_secs(60)).await;
    stack.clone().oneshot(record(1, r#""fail-2""#)).await.unwrap();
    let history = History::read(folder.path()).unwrap();
    let answers: Vec<_> = history
        .events()
        .filter_map(|(_, event)| match event {
            Event::Answer(answer) => Some((answer.record.offset, answer.outcome)),
            _ => None,
        })
        .collect();
    let (processed, error) = (Outcome::Processed, Outcome::Error);
    let expected =
        [(0, processed), (1, error), (2, Outcome::Duplicate), (3, error), (1, processed)];
    assert_eq!(answers, expected);
    let effects = history.events().filter(|(_, event)| matches!(event, Event::Effect(_)));
    assert_eq!(effects.count(), 2);
    let verdict = judge(&history);
    assert_eq!(verdict.causes().into_iter().collect::<Vec<_>>(), [(Cause::Failed, 1)]);
    let [lost] = &verdict.violations[..] else { panic!("{verdict}") };
    assert_eq!(lost.subject, "jobs/0@3");
}

#[tokio::test(start_paused = true)]
async fn dropped_and_panicking_handlers_are_recorded_as_such() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
    let history = recorder(folder.path(), &clock);
    let store = MemoryStore::with_clock(clock.store_clock());
    let started = Arc::new(Notify::new());
    let stack = stack(&history, &clock, &store, started.clone());
    let hanging = tokio::spawn(stack.clone().oneshot(record(0, r#""hang-1""#)));
    started.notified().await;
    hanging.abort();
    hanging.await.unwrap_err();
    stack.clone().oneshot(record(1, r#""panic-1""#)).await.unwrap_err();
    let history = History::read(folder.path()).unwrap();
    let ends: Vec<_> = history
        .events()
        .filter_map(|(_, event)| match event {
            Event::End(end) => Some((Some(end.how), end.lost.as_deref(), None)),
            Event::Answer(answer) => Some((None, None, Some(answer.outcome))),
            _ => None,
        })
        .collect();
    let expected = [
        (Some(How::Dropped), None, None),
        (None, None, Some(Outcome::Dropped)),
        (Some(How::Error), None, None),
        (None, None, Some(Outcome::Error)),
    ];
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn lost_lock_is_recorded_with_its_reason() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
    let history = recorder(folder.path(), &clock);
    let store = MemoryStore::with_clock(clock.store_clock());
    let started = Arc::new(Notify::new());
    let stack = stack(&history, &clock, &store, started.clone());
    let hanging = tokio::spawn(stack.clone().oneshot(record(0, r#""hang-1""#)));
    started.notified().await;
    // As after a suspension of the process.
    clock.advance(2 * LOCK_TTL);
    tokio::time::sleep(LOCK_TTL).await;
    hanging.await.unwrap().unwrap_err();
    let history = History::read(folder.path()).unwrap();
    let lost = history.events().find_map(|(_, event)| match event {
        Event::End(end) => Some((end.how, end.lost.clone().unwrap_or_default())),
        _ => None,
    });
    let (how, lost) = lost.unwrap();
    assert_eq!(how, How::Dropped);
    assert!(lost.contains("no renewal was confirmed"), "{lost}");
}

#[test]
fn run_without_a_stack_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let history = HistoryRecorder::create(folder.path(), "w-1", None).unwrap();
    let other = Settings {
        order: Order::None,
        lock_ttl: 1,
        max_hold: None,
        transactions: None,
        tolerance: 0,
    };
    HistoryRecorder::create(folder.path(), "w-2", Some(other)).unwrap();
    let run = history.begin_run(record(0, "").coordinates(), None);
    run.effect();
    run.end(&Ok::<_, Infallible>(()));
    let history = History::read(folder.path()).unwrap();
    let kinds: Vec<_> = history.events().map(|(_, event)| std::mem::discriminant(event)).collect();
    assert_eq!(kinds.len(), 3);
}

#[tokio::test]
async fn records_of_a_recreated_topic_are_others() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
    let history = recorder(folder.path(), &clock);
    let store = MemoryStore::with_clock(clock.store_clock());
    let stack = stack(&history, &clock, &store, Arc::default());
    let place = |topic| campanile_core::Coordinates { topic, partition: 0, offset: 0 };
    history.sent(history.now(), record(0, "").coordinates(), Some("1"), None);
    history.deleted(history.now(), "jobs", 0, i64::MAX);
    for (key, name) in [("2", "jobs~2"), ("3", "jobs~3")] {
        history.sent(history.now(), &place(name.into()), Some(key), None);
    }
    // That of another topic has no meaning.
    for (topic, body, name) in [("jobs", r#""2""#, "jobs~2"), ("other", r#""4""#, "jobs~2")] {
        let again = Record::builder(topic, 0, 0).payload(body).header(TOPIC_HEADER, name);
        stack.clone().oneshot(again.build()).await.unwrap();
    }
    let verdict = judge(&History::read(folder.path()).unwrap());
    let lost: Vec<_> = verdict.violations.iter().map(|it| (it.rule, &*it.subject)).collect();
    assert_eq!(lost, [(Rule::Lost, "jobs~3/0@0")]);
}

#[tokio::test]
async fn entries_and_skips_are_recorded() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
    let history = recorder(folder.path(), &clock);
    let store = MemoryStore::with_clock(clock.store_clock());
    let stack = stack(&history, &clock, &store, Arc::default());
    history.sent(history.now(), record(0, "").coordinates(), Some("1"), None);
    stack.oneshot(record(0, r#""1""#)).await.unwrap();
    let key = IdempotencyKey::new("1".to_owned()).unwrap();
    let key = StoreKey::new(Namespace::try_from("jobs").unwrap(), &key);
    let Found::Entry { entry, .. } = store.inspect(&key).await.unwrap().found else {
        panic!("no entry")
    };
    history.entry(history.now(), "1", Some(&entry));
    history.sent(history.now(), record(1, "").coordinates(), Some("2"), None);
    history.skipped(record(1, "").coordinates());
    history.entry(history.now(), "2", None);
    let verdict = judge(&History::read(folder.path()).unwrap());
    assert!(verdict.is_sound(), "{verdict}");
    // Another entry of a processed key contradicts its run.
    history.entry(history.now(), "1", None);
    let verdict = judge(&History::read(folder.path()).unwrap());
    assert_eq!(verdict.violations[0].rule, Rule::Entry);
}

/// The commits that a real broker recorded.
#[cfg(feature = "servers")]
#[test]
fn commits_of_the_group_are_recorded_in_their_order() {
    use campanile_test::{KafkaServer, Message, eventually};
    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
    use rdkafka::{Offset, TopicPartitionList};

    let (kafka, folder) = (KafkaServer::start().unwrap(), tempfile::tempdir().unwrap());
    kafka.create_topic("jobs", 1, &[]).unwrap();
    kafka.producer().produce(Message::to("jobs").payload("a job")).unwrap();
    let settings = Settings {
        order: Order::None,
        lock_ttl: 1,
        max_hold: None,
        transactions: None,
        tolerance: 2_000,
    };
    let history = HistoryRecorder::create(folder.path(), "test", Some(settings)).unwrap();
    let commit = |group: &str, offset| {
        let consumer: BaseConsumer = kafka.consumer_config(group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("jobs", 0, Offset::Offset(offset)).unwrap();
        // The group's coordinator may still be starting.
        let commit = || consumer.commit(&list, CommitMode::Sync).ok();
        eventually(Duration::from_secs(30), commit).expect("committed");
    };
    let before = history.now();
    commit("billing", 1);
    commit("other", 1);
    commit("billing", 0);
    let after = history.now();
    let count = history.record_commits(&kafka.consumer_config("auditor"), "billing").unwrap();
    assert_eq!(count, 2);
    let history = History::read(folder.path()).unwrap();
    let commits: Vec<_> = history
        .events()
        .map(|(_, event)| match event {
            Event::Commit(commit) => (commit.partition.to_string(), commit.offset, commit.at),
            other => panic!("{other:?}"),
        })
        .collect();
    let offsets: Vec<_> = commits.iter().map(|(name, offset, _)| (&**name, *offset)).collect();
    assert_eq!(offsets, [("jobs/0", 1), ("jobs/0", 0)]);
    for (_, _, at) in commits {
        assert!(at + 2_000 >= before && at <= after + 2_000, "{before} {at} {after}");
    }
    assert_eq!(judge(&history).violations[0].subject, "jobs/0");
}
