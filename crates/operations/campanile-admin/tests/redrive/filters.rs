//! Filters, limits, and previews.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use campanile_admin::redrive::{LetterFilter, ReasonCount, Redrive};
use campanile_idempotency::Store;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use crate::run;
use crate::support::{KAFKA, Scene, store_key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_select_letters_by_each_criterion() {
    let scene = Scene::new("filters", 2).await;
    let token = scene.fail("p-1").await;
    let letters = [
        scene.letter("p-1", token).partition(0),
        scene.keyless_letter("k-1", "undecodable").partition(1).header("region", "eu"),
    ];
    KAFKA.producer().produce_all(letters).unwrap();
    let at = |millis| Some(SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
    let all = LetterFilter::default;
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    for (filter, expected) in [
        (all(), 2),
        (LetterFilter { reason: Some("undecodable".into()), ..all() }, 1),
        (LetterFilter { reason: Some("p-1 declined".into()), ..all() }, 1),
        (LetterFilter { reason: Some("declined".into()), ..all() }, 2),
        (LetterFilter { reason: Some("undecod".into()), ..all() }, 0),
        (LetterFilter { since: at(1500), until: at(1501), ..all() }, 2),
        (LetterFilter { since: at(1501), ..all() }, 0),
        (LetterFilter { until: at(1500), ..all() }, 0),
        (LetterFilter { key: Some(b"p-1".to_vec()), ..all() }, 1),
        (LetterFilter { partition: Some(1), ..all() }, 1),
        (LetterFilter { headers: header("region", "eu"), ..all() }, 1),
        (LetterFilter { headers: header("region", "us"), ..all() }, 0),
    ] {
        let redrive = Redrive::new(scene.dead.as_str())
            .with_letters_without_key()
            .with_filter(filter.clone());
        let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap();
        let selected: u64 = preview.reasons.iter().map(|count| count.letters).sum();
        assert_eq!((selected, preview.filtered), (expected, 2 - expected), "{filter:?}");
    }
    let by_key = LetterFilter { key: Some(b"p-1".to_vec()), ..all() };
    let redrive = Redrive::new(scene.dead.as_str()).with_filter(by_key);
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.filtered), (1, 1));
    assert_eq!(scene.produced(), ["p-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preview_counts_what_the_run_does_and_changes_nothing() {
    let scene = Scene::new("preview", 1).await;
    let mut letters = scene.failed_letters(3).await;
    letters.push(scene.keyless_letter("k", "undecodable"));
    let reopened = scene.fail("reopened").await;
    scene.store.redrive(store_key("reopened"), reopened, false).await.unwrap();
    letters.push(scene.letter("reopened", reopened));
    let completed = scene.fail("completed").await;
    scene.complete_later("completed", completed).await;
    letters.push(scene.letter("completed", completed));
    let locked = scene.lock("locked").await.token;
    letters.push(scene.letter("locked", locked));
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_patience(Duration::ZERO);
    let preview = redrive.preview(&scene.kafka(), &scene.store).await.unwrap();
    let counts = |counts: &[ReasonCount]| -> Vec<String> {
        let text = |it: &ReasonCount| format!("{}x {} {}", it.letters, it.reason, it.example);
        counts.iter().map(text).collect()
    };
    assert_eq!(preview.reopened, 3);
    assert_eq!(counts(&preview.parked), ["1x held no lock (undecodable) preview.dead/0@3"]);
    assert_eq!(counts(&preview.produced), ["1x its key had been reopened before preview.dead/0@4"]);
    assert_eq!(counts(&preview.skipped), ["1x its key was locked again later preview.dead/0@5"]);
    assert_eq!(counts(&preview.deferred), ["1x its key is being processed preview.dead/0@6"]);
    assert_eq!(counts(&preview.reasons)[0], "3x exhausted: card of p-# declined preview.dead/0@0");
    assert!(scene.produced().is_empty());
    assert_eq!(committed(&scene, &redrive.group()), Offset::Invalid);
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    let of = |counts: &[ReasonCount]| counts.iter().map(|count| count.letters).sum::<u64>();
    assert_eq!(
        [summary.reopened, summary.produced, summary.skipped, summary.deferred, summary.parked],
        [
            preview.reopened,
            of(&preview.produced),
            of(&preview.skipped),
            of(&preview.deferred),
            of(&preview.parked)
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limited_runs_continue_where_the_last_one_ended() {
    let scene = Scene::new("limited", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(25).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_max(10);
    for expected in [10, 10, 5, 0] {
        let (summary, _) = run(&scene, &redrive).await.unwrap();
        assert_eq!(summary.reopened, expected);
    }
    assert_eq!(scene.produced().len(), 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_is_not_exceeded() {
    let scene = Scene::new("paced", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(100).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_rate(NonZeroU32::new(100).unwrap());
    let start = Instant::now();
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!(summary.reopened, 100);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
}

fn committed(scene: &Scene, group: &str) -> Offset {
    let consumer: BaseConsumer = KAFKA.consumer_config(group).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition(&scene.dead, 0);
    let offsets = consumer.committed_offsets(list, Duration::from_secs(30)).unwrap();
    offsets.find_partition(&scene.dead, 0).unwrap().offset()
}
