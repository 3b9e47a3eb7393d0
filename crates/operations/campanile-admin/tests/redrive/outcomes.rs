//! The outcome of each kind of letter.

use std::time::Duration;

use campanile_admin::redrive::{LetterOutcome, Redrive};
use campanile_idempotency::Store;
use campanile_test::Message;
use rdkafka::Message as _;

use crate::run;
use crate::support::{KAFKA, NAMESPACE, Scene, headers, store_key};

/// What a letter is like, with the outcome and a part of the detail that are expected.
type Kind = (&'static str, LetterOutcome, &'static str);

const KINDS: &[Kind] = &[
    ("failed", LetterOutcome::Reopened, "reopened"),
    ("completed", LetterOutcome::Skipped, "completed"),
    ("completed-later", LetterOutcome::Skipped, "locked again later"),
    ("processing-later", LetterOutcome::Skipped, "locked again later"),
    ("retrying", LetterOutcome::Skipped, "not given up"),
    ("absent", LetterOutcome::Parked, "no entry"),
    ("garbage", LetterOutcome::Parked, "cannot be read"),
    ("keyless", LetterOutcome::Parked, "held no lock (undecodable)"),
    ("truncated", LetterOutcome::Parked, "without its payload"),
    ("looping", LetterOutcome::Parked, "brought back 3 times"),
    ("topicless", LetterOutcome::Parked, "`gone` does not exist"),
    ("foreign", LetterOutcome::Parked, "not a dead letter"),
    ("invalid", LetterOutcome::Parked, "`campanile-token`"),
];

/// Creates a letter of this kind, and the entry of its key.
async fn letter(scene: &Scene, kind: &str, key: &str) -> Message {
    match kind {
        "failed" => scene.letter(key, scene.fail(key).await),
        "completed" => {
            let grant = scene.lock(key).await;
            scene.complete(key, grant).await;
            scene.letter(key, grant.token)
        }
        "completed-later" => {
            let token = scene.fail(key).await;
            scene.complete_later(key, token).await;
            scene.letter(key, token)
        }
        "processing-later" => {
            let grant = scene.lock(key).await;
            scene.retry(key, grant).await;
            scene.lock(key).await;
            scene.letter(key, grant.token)
        }
        "retrying" => {
            let grant = scene.lock(key).await;
            scene.retry(key, grant).await;
            scene.letter(key, grant.token)
        }
        "absent" => scene.letter(key, campanile_core::FencingToken::new(7).unwrap()),
        "garbage" => {
            let token = scene.fail(key).await;
            scene.break_entry(key);
            scene.letter(key, token)
        }
        "keyless" => scene.keyless_letter(key, "undecodable"),
        "truncated" => {
            let token = scene.fail(key).await;
            scene.letter(key, token).header("campanile-truncated-payload-bytes", "9000000")
        }
        "looping" => {
            let token = scene.fail(key).await;
            scene.letter(key, token).header("campanile-redrives", "3")
        }
        "topicless" => {
            let token = scene.fail(key).await;
            scene
                .letter_of("gone", key, "exhausted")
                .header("campanile-key", key)
                .header("campanile-namespace", "payments")
                .header("campanile-token", token.to_string())
        }
        "foreign" => Message::to(&scene.dead).payload("not ours"),
        "invalid" => scene.keyless_letter(key, "failed").header("campanile-token", "seven"),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letter_of_each_kind_has_its_outcome() {
    let scene = Scene::new("kinds", 3).await;
    let mut letters = Vec::new();
    for number in 0..16 {
        for (kind, ..) in KINDS {
            letters.push(letter(&scene, kind, &format!("{kind}-{number}")).await);
        }
    }
    let count = letters.len();
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (summary, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!(audit.0.len(), count, "{summary:?}");
    for report in &audit.0 {
        let kind = match report.key.as_deref() {
            Some(key) => key.rsplit_once('-').unwrap().0,
            None if report.detail.contains("`campanile-token`") => "invalid",
            None if report.origin.is_none() => "foreign",
            None => "keyless",
        };
        let &(_, outcome, detail) = KINDS.iter().find(|(name, ..)| *name == kind).unwrap();
        assert_eq!(report.outcome, outcome, "{report:?}");
        assert!(report.detail.contains(detail), "{report:?}");
    }
    let mut expected: Vec<String> = (0..16).map(|number| format!("failed-{number}")).collect();
    expected.sort();
    assert_eq!(scene.produced(), expected);

    let (again, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((again.reopened, audit.0.len()), (0, 0), "the offsets are committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_is_restored_with_a_counter_of_redrives() {
    let scene = Scene::new("restored", 1).await;
    let letter = scene.letter("p-1", scene.fail("p-1").await).header("campanile-redrives", "1");
    KAFKA.producer().produce(letter).unwrap();
    run(&scene, &Redrive::new(scene.dead.as_str())).await.unwrap();
    let records = scene.records(&scene.topic);
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!((record.key(), record.payload()), (Some(&b"account of p-1"[..]), Some(&b"p-1"[..])));
    assert_eq!(record.timestamp().to_millis(), Some(1500));
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    assert_eq!(
        headers(record),
        [("source", "web"), ("campanile-redrives", "2")].map(owned),
        "without those of the letter"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_without_key_or_entry_are_produced_on_request() {
    let scene = Scene::new("choices", 1).await;
    let letters = [letter(&scene, "keyless", "k-1").await, letter(&scene, "absent", "a-1").await];
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (0, 2));
    for redrive in
        [redrive.clone().with_letters_without_key(), redrive.with_letters_without_entry()]
    {
        let (summary, _) = run(&scene, &redrive).await.unwrap();
        assert_eq!((summary.reopened, summary.produced, summary.parked), (0, 1, 1));
    }
    assert_eq!(scene.produced(), ["a-1", "k-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_letters_are_copied_to_the_parking_topic() {
    let scene = Scene::new("parking", 1).await;
    KAFKA.create_topic("parking.lot", 1, &[]).unwrap();
    // The parking topic would delete the copy of an old letter.
    let old = letter(&scene, "keyless", "k-1").await.timestamp(1500);
    let letters = [old, letter(&scene, "failed", "p-1").await];
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (summary, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (1, 1));
    assert_eq!(audit.0[0].parked_to, None);
    // Letters that were parked before are copied, too.
    let redrive = redrive.with_parking_topic("parking.lot");
    let (summary, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.produced, summary.parked), (0, 1, 1));
    assert_eq!(audit.0[0].parked_to.as_deref(), Some("parking.lot"));
    let (parked, letters) = (scene.records("parking.lot"), scene.records(&scene.dead));
    let [copy] = &parked[..] else { panic!("{} copies", parked.len()) };
    assert_eq!((copy.key(), copy.payload()), (letters[0].key(), letters[0].payload()));
    assert_eq!(letters[0].timestamp().to_millis(), Some(1500));
    assert!(copy.timestamp() > letters[1].timestamp(), "{:?}", copy.timestamp());
    let names = |headers: Vec<(String, String)>| headers.into_iter().map(|(name, _)| name);
    let origin = "kafka_dlt-original-topic".to_owned();
    assert!(copy.headers().is_some() && names(headers_lossy(copy)).any(|name| name == origin));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_handles_parked_letters_again_and_skips_processed_ones() {
    let scene = Scene::new("new-group", 1).await;
    let token = scene.fail("p-1").await.to_string();
    let parked = scene.letter_of("created-later", "p-1", "exhausted");
    let parked = parked.header("campanile-key", "p-1").header("campanile-namespace", NAMESPACE);
    let parked = parked.header("campanile-token", token);
    KAFKA.producer().produce_all([parked, letter(&scene, "failed", "p-2").await]).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (1, 1));
    let grant = scene.lock("p-2").await;
    scene.complete("p-2", grant).await;

    KAFKA.create_topic("created-later", 1, &[("retention.ms", "-1")]).unwrap();
    let (same, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!((same.reopened, same.parked), (0, 0));
    let (summary, audit) = run(&scene, &redrive.with_group("new-group.2")).await.unwrap();
    assert_eq!((summary.reopened, summary.skipped), (1, 1), "{:?}", audit.0);
    assert_eq!(scene.records("created-later").len(), 1);
}

fn headers_lossy(record: &rdkafka::message::OwnedMessage) -> Vec<(String, String)> {
    use rdkafka::message::Headers as _;
    let all = record.headers().unwrap().iter();
    all.map(|h| (h.key.to_owned(), String::from_utf8_lossy(h.value.unwrap()).into_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_too_large_for_its_topic_is_parked_alone() {
    let scene = Scene::new("large", 1).await;
    KAFKA.create_topic("small", 1, &[("max.message.bytes", "2000")]).unwrap();
    let mut letters = Vec::new();
    // Together they are larger than a batch that the topic accepts.
    for number in 0..20 {
        let key = format!("p-{number}");
        let token = scene.fail(&key).await.to_string();
        // Random, because the producer compresses.
        let length = if number == 7 { 3000 } else { 300 };
        let payload: String = (0..length).map(|_| fastrand::alphanumeric()).collect();
        let letter = scene.letter_of("small", &payload, "exhausted").header("campanile-key", &key);
        letters
            .push(letter.header("campanile-namespace", NAMESPACE).header("campanile-token", token));
    }
    KAFKA.producer().produce_all(letters).unwrap();
    let (summary, audit) = run(&scene, &Redrive::new(scene.dead.as_str())).await.unwrap();
    assert_eq!((summary.reopened, summary.parked), (19, 1), "{:?}", audit.0);
    assert_eq!(audit.keys(LetterOutcome::Parked), ["p-7"]);
    assert_eq!(scene.records("small").len(), 19);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_in_process_is_waited_for_and_then_deferred() {
    let scene = Scene::new("deferred", 1).await;
    let grant = scene.lock("p-1").await;
    let behind = letter(&scene, "failed", "p-2").await;
    KAFKA.producer().produce_all([scene.letter("p-1", grant.token), behind]).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());

    let impatient = redrive.clone().with_patience(Duration::ZERO);
    let (summary, audit) = run(&scene, &impatient).await.unwrap();
    assert_eq!((summary.reopened, summary.deferred), (1, 1));
    assert_eq!(audit.keys(LetterOutcome::Deferred), ["p-1"]);

    // Whether the key is given up before or after the store is first asked, the letter is reopened.
    let give_up = scene.give_up("p-1", grant);
    let (result, ()) = tokio::join!(run(&scene, &redrive), give_up);
    let (summary, audit) = result.unwrap();
    assert_eq!(summary.deferred, 0);
    assert!(audit.keys(LetterOutcome::Reopened).contains(&"p-1"), "{:?}", audit.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_letter_reopen_their_key_once() {
    let scene = Scene::new("copies", 2).await;
    let first = scene.lock("p-1").await;
    scene.retry("p-1", first).await;
    let second = scene.fail("p-1").await;
    let tokens = [first.token, second, first.token, second];
    let letters = tokens.map(|token| scene.letter("p-1", token));
    KAFKA.producer().produce_all(letters).unwrap();
    let (summary, _) = run(&scene, &Redrive::new(scene.dead.as_str())).await.unwrap();
    assert_eq!((summary.reopened, summary.produced, summary.skipped), (1, 1, 2));
    assert_eq!(scene.produced(), ["p-1", "p-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_was_reopened_before_is_not_counted_as_reopened() {
    let scene = Scene::new("before", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(2).await).unwrap();
    let token = scene.fail("by-hand").await;
    scene.store.redrive(store_key("by-hand"), token, false).await.unwrap();
    KAFKA.producer().produce(scene.letter("by-hand", token)).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (first, audit) = run(&scene, &redrive).await.unwrap();
    assert_eq!((first.reopened, first.produced), (2, 1));
    assert_eq!(audit.keys(LetterOutcome::Produced), ["by-hand"]);
    let (second, _) = run(&scene, &redrive.with_group("another")).await.unwrap();
    assert_eq!((second.reopened, second.produced), (0, 3));
}
