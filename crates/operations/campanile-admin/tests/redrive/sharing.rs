//! Several runs at a time.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use campanile_admin::redrive::{LetterReport, Redrive, RedriveObserver, RedriveSummary};
use campanile_core::BoxError;
use campanile_test::eventually;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::spawn_blocking;

use crate::servers::text;
use crate::support::{KAFKA, Scene};
use crate::{Audit, run};

const TIMEOUT: Duration = Duration::from_secs(60);

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

/// Joins the group of the run as a member that handles nothing, and waits until all partitions are
/// assigned to it.
async fn join_idle(scene: &Scene, redrive: &Redrive) -> BaseConsumer {
    let mut config = scene.kafka();
    config.set("group.id", redrive.group()).set("partition.assignment.strategy", "range");
    config.set("group.protocol", "classic").set("enable.auto.commit", "false");
    let member: BaseConsumer = config.create().unwrap();
    member.subscribe(&[&scene.dead]).unwrap();
    let partitions = usize::try_from(scene.partitions).unwrap();
    let member = spawn_blocking(move || {
        while member.assignment().unwrap().count() < partitions {
            poll(&member);
        }
        member
    });
    member.await.unwrap()
}

fn poll(member: &BaseConsumer) {
    drop(member.poll(Duration::from_millis(50)));
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

    let member = join_idle(&scene, &redrive).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_with_a_deferred_letter_does_not_wait_for_others() {
    let scene = Scene::new("both-deferred", 2).await;
    let mut letters = Vec::new();
    for (key, partition) in [("p-0", 0), ("p-1", 1)] {
        letters.push(scene.letter(key, scene.lock(key).await.token).partition(partition));
    }
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_patience(Duration::ZERO);

    // It does not commit the end of its partition, as a run that has deferred a letter.
    let member = join_idle(&scene, &redrive).await;
    let is_done = Arc::new(AtomicBool::new(false));
    let until = is_done.clone();
    let poll = spawn_blocking(move || {
        while !until.load(Ordering::Relaxed) {
            poll(&member);
        }
    });
    let run = tokio::time::timeout(TIMEOUT, run(&scene, &redrive)).await;
    is_done.store(true, Ordering::Relaxed);
    poll.await.unwrap();
    let (summary, _) = run.expect("the run ends").unwrap();
    assert_eq!(summary.deferred, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_ends_if_another_member_of_its_group_makes_no_progress() {
    let scene = Scene::new("held", 2).await;
    let letters = scene.failed_letters(4).await.into_iter().zip([0, 1].into_iter().cycle());
    let letters = letters.map(|(letter, partition)| letter.partition(partition));
    KAFKA.producer().produce_all(letters).unwrap();
    let redrive = Redrive::new(scene.dead.as_str()).with_patience(Duration::ZERO);
    // Enough for brokers on a slow machine.
    let redrive = redrive.with_timeout(Duration::from_secs(10));

    let (member, is_done) = (join_idle(&scene, &redrive).await, Arc::new(AtomicBool::new(false)));
    let until = is_done.clone();
    let poll = spawn_blocking(move || {
        while !until.load(Ordering::Relaxed) {
            poll(&member);
        }
    });
    let run = tokio::time::timeout(TIMEOUT, run(&scene, &redrive)).await;
    is_done.store(true, Ordering::Relaxed);
    poll.await.unwrap();
    let error = text(&run.expect("the run ends").err().unwrap());
    assert!(error.contains("2 letters are left to other runs"), "{error}");
    assert_eq!(scene.produced().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_that_ends_with_a_marker_is_committed_to_its_end() {
    let scene = Scene::new("marked", 1).await;
    let producer: BaseProducer = scene.kafka().set("transactional.id", "marked").create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    let letter = BaseRecord::<[u8], [u8]>::to(&scene.dead).payload(b"not a letter");
    producer.send(letter).map_err(|(error, _)| error).unwrap();
    producer.commit_transaction(TIMEOUT).unwrap();
    let redrive = Redrive::new(scene.dead.as_str());
    let group: BaseConsumer = scene.kafka().set("group.id", redrive.group()).create().unwrap();
    // The record, and the marker of its transaction, which is written in the background.
    const END: i64 = 2;
    let has_marker = || {
        let (_, end) = group.fetch_watermarks(&scene.dead, 0, TIMEOUT).unwrap();
        (end == END).then_some(())
    };
    eventually(TIMEOUT, has_marker).expect("the transaction ends");

    let (summary, _) = run(&scene, &redrive).await.unwrap();
    assert_eq!(summary.parked, 1);
    let mut list = TopicPartitionList::new();
    list.add_partition(&scene.dead, 0);
    let committed = group.committed_offsets(list, TIMEOUT).unwrap();
    assert_eq!(committed.elements()[0].offset(), Offset::Offset(END));
}
