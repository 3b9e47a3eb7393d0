//! Several runs at a time.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use campanile_admin::redrive::Redrive;

use crate::run;
use crate::support::{KAFKA, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_runs_share_partitions_and_lose_no_letter() {
    const LETTERS: usize = 200;
    let scene = Scene::new("shared", 4).await;
    let letters = scene.failed_letters(LETTERS).await;
    let partitions = (0..scene.partitions).cycle();
    let letters = letters.into_iter().zip(partitions).map(|(letter, p)| letter.partition(p));
    KAFKA.producer().produce_all(letters).unwrap();
    // Slow enough for both to be assigned partitions.
    let redrive = Redrive::new(scene.dead.as_str()).with_rate(NonZeroU32::new(40).unwrap());
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
    assert!(one.unwrap().0.reopened + two.unwrap().0.reopened >= 60);
    let produced: BTreeSet<String> = scene.produced().into_iter().collect();
    assert_eq!(produced.len(), 60);
}
