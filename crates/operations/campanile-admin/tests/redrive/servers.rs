//! Servers that are away, and topics that do not exist.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use campanile_admin::AdminError;
use campanile_admin::redrive::{LetterOutcome, LetterReport, Redrive, RedriveObserver};
use campanile_core::{Answer, BoxError, Command, StoreKey, error};
use campanile_idempotency::{
    InspectStore, Inspection, ScanCursor, ScanFilter, ScanPage, Store, StoreError,
};
use rdkafka::ClientConfig;
use tokio::sync::Notify;

use crate::run;
use crate::support::{KAFKA, Scene};

const SHORT: Duration = Duration::from_secs(2);

pub(crate) fn text(failed: &AdminError) -> String {
    error::sources(failed).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topics_are_errors_before_anything_changes() {
    let scene = Scene::new("missing", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(1).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    for (redrive, why) in [
        (Redrive::new("nowhere"), "there is no topic `nowhere`"),
        (redrive.clone().with_parking_topic("nowhere"), "there is no topic `nowhere` to park"),
        (redrive.clone().with_parking_topic("missing.dead"), "parking topic of itself"),
    ] {
        let failed = run(&scene, &redrive).await.err().unwrap();
        assert!(
            matches!(failed, AdminError::Config(_)) && text(&failed).contains(why),
            "{failed:?}"
        );
    }
    assert!(scene.produced().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_kafka_is_an_error_with_its_address() {
    let scene = Scene::new("unreachable", 1).await;
    let mut kafka = ClientConfig::new();
    kafka.set("bootstrap.servers", "127.0.0.1:1");
    let redrive = Redrive::new("unreachable.dead").with_timeout(SHORT);
    let failed = redrive.run(&kafka, &scene.store, &mut (), pending::<()>()).await.err().unwrap();
    let text = text(&failed);
    assert!(matches!(failed, AdminError::Unavailable { .. }), "{failed:?}");
    assert!(text.contains("on Kafka") && text.contains("127.0.0.1:1"), "{text}");
}

/// Kills the store after the first letters.
struct KillStore {
    redis: Option<campanile_test::RedisServer>,
    outcomes: Vec<LetterOutcome>,
}

impl RedriveObserver for KillStore {
    fn handled(&mut self, letters: &[LetterReport]) -> Result<(), BoxError> {
        drop(self.redis.take());
        self.outcomes.extend(letters.iter().map(|letter| letter.outcome));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_goes_away_is_an_error_and_the_rest_stays() {
    let scene = Scene::new("away", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(20).await).unwrap();
    let (kafka, topic, dead) = (scene.kafka(), scene.topic.clone(), scene.dead.clone());
    let Scene { redis, store, .. } = scene;
    // Enough for brokers on a slow machine.
    let redrive = Redrive::new(dead.as_str()).with_timeout(SHORT * 5);
    let redrive = redrive.with_rate(std::num::NonZeroU32::new(100).unwrap());
    let mut kill = KillStore { redis: Some(redis), outcomes: Vec::new() };
    let failed = redrive.run(&kafka, &store, &mut kill, pending::<()>()).await.err().unwrap();
    assert!(matches!(failed, AdminError::Unavailable { .. }), "{failed:?}");
    assert!(text(&failed).contains("cannot read entries in the store"), "{}", text(&failed));
    let other = Scene::new("away-reader", 1).await;
    // A round has at most a tenth of the letters of a second.
    let handled = kill.outcomes.len();
    assert!((1..=10).contains(&handled), "{:?}", kill.outcomes);
    assert_eq!(kill.outcomes, vec![LetterOutcome::Reopened; handled]);
    assert_eq!(other.records(&topic).len(), handled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_run_is_resumed() {
    let scene = Scene::new("stopped", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(30).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let stopped =
        redrive.run(&scene.kafka(), &scene.store, &mut (), std::future::ready(())).await.unwrap();
    assert_eq!((stopped.interrupted, stopped.reopened), (true, 0));
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!(summary.reopened, 30);
}

/// A store that never answers, and notifies of each look-up.
#[derive(Clone, Default)]
struct Hung(Arc<Notify>);

impl Store for Hung {
    async fn apply(&self, _: Command) -> Result<Answer, StoreError> {
        pending().await
    }
}

impl InspectStore for Hung {
    async fn inspect(&self, _: &StoreKey) -> Result<Inspection, StoreError> {
        self.0.notify_one();
        pending().await
    }

    async fn scan(&self, _: &ScanFilter, _: &ScanCursor) -> Result<ScanPage, StoreError> {
        pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_ends_the_wait_for_a_hung_store_and_loses_no_letter() {
    let scene = Scene::new("hung", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(3).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let (kafka, hung) = (scene.kafka(), Hung::default());
    let mut observer = ();
    let stopped = redrive.run(&kafka, &hung, &mut observer, hung.0.notified());
    let stopped = tokio::time::timeout(Duration::from_secs(60), stopped).await;
    let stopped = stopped.expect("the run ends").unwrap();
    assert_eq!((stopped.interrupted, stopped.reopened), (true, 0));
    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!(summary.reopened, 3);
}
