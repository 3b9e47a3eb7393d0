//! Several runs at a time.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use campanile_admin::redrive::{LetterReport, Redrive, RedriveObserver, RedriveSummary};
use campanile_core::BoxError;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::task::spawn_blocking;

use crate::support::{KAFKA, Scene};
use crate::{Audit, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_runs_share_partitions_and_lose_no_letter() {
    const LETTERS: usize = 200;
    let scene = Scene::new("shared", 4).await;
    let letters = scene.failed_letters(LETTERS).await;
    let partitions = (0..scene.partitions).cycle();
    let letters = letters.into_iter().zip(partitions).map(|(letter, p)| letter.partition(p));
    KAFKA.producer().produce_all(letters).unwrap();
    // Slow enough for both to be assigned partitions.
    let redrive = Redrive::new(scene.dead.as_str()).with_rate(NonZeroU32::new(20).unwrap());
    let (one, two) = tokio::join!(run(&scene, &redrive), run(&scene, &redrive));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(one.0.reopened > 0 && two.0.reopened > 0, "{:?} {:?}", one.0, two.0);
    let produced: BTreeSet<String> = scene.produced().into_iter().collect();
    assert_eq!(produced.len(), LETTERS, "no letter is lost");
    let (again, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!(again.reopened, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_without_a_partition_ends() {
    let scene = Scene::new("single", 1).await;
    KAFKA.producer().produce_all(scene.failed_letters(60).await).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_rate(NonZeroU32::new(40).unwrap());
    let (one, two) = tokio::join!(run(&scene, &redrive), run(&scene, &redrive));
    let brought_back = |(summary, _): (RedriveSummary, Audit)| summary.reopened + summary.produced;
    assert!(brought_back(one.unwrap()) + brought_back(two.unwrap()) >= 60);
    let produced: BTreeSet<String> = scene.produced().into_iter().collect();
    assert_eq!(produced.len(), 60);
}

/// Counts the letters that were handled.
struct Count(Arc<AtomicUsize>);

impl RedriveObserver for Count {
    fn handled(&mut self, reports: &[LetterReport]) -> Result<(), BoxError> {
        self.0.fetch_add(reports.len(), Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_over_partitions_of_a_member_that_left() {
    const LETTERS: usize = 20;
    let scene = Scene::new("left", 2).await;
    let letters = scene.failed_letters(LETTERS).await.into_iter().zip([0, 1].into_iter().cycle());
    let letters = letters.map(|(letter, partition)| letter.partition(partition));
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());

    // A member that is assigned partitions and handles nothing.
    let mut config = scene.kafka();
    config.set("group.id", redrive.group()).set("partition.assignment.strategy", "range");
    config.set("group.protocol", "classic").set("enable.auto.commit", "false");
    let member: BaseConsumer = config.create().unwrap();
    member.subscribe(&[&scene.dead]).unwrap();
    let poll = |member: &BaseConsumer| drop(member.poll(Duration::from_millis(50)));
    let member = spawn_blocking(move || {
        while member.assignment().unwrap().count() < 2 {
            poll(&member);
        }
        member
    });
    let member = member.await.unwrap();

    // It leaves when the run has handled the letters of the other partition.
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let leave = spawn_blocking(move || {
        while count.load(Ordering::Relaxed) < LETTERS / 2 {
            poll(&member);
        }
    });
    let (kafka, mut count) = (scene.kafka(), Count(handled));
    let run = redrive.run(&kafka, &scene.store, &mut count, std::future::pending::<()>());
    let (summary, left) = tokio::join!(run, leave);
    left.unwrap();
    assert_eq!(summary.unwrap().reopened, LETTERS as u64);
}
