//! A dead letter is its record, with where it came from and why it died, and it is there before
//! anything is committed.

use campanile_core::Operation;
use campanile_idempotency::{LockKeeper, MemoryStore};
use campanile_test::faults::{Fault, FaultyStore};

use super::{burying, header, kafka, letters, payloads, produce, unknown};
use crate::given_up::{FAILS, GOOD, LAST, Outcomes, PERMANENT, service};
use crate::support::{committed, serve, until, until_committed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_published_then_its_key_is_failed_then_its_offset_is_committed() {
    let kafka = kafka(&[GOOD]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let outcomes = Outcomes::default();
    let serving = serve(burying(config.clone()), service(&keeper, 1, &outcomes));
    until_committed(&config, "orders", &[1]).await;

    unknown(&kafka, super::DEAD, true);
    store.next_of("reject", Fault::Hang);
    produce(&kafka, &[FAILS, FAILS, LAST]);
    // Its attempt is recorded because its letter could not be published.
    until("its lock is let go", || store.count("fail") == 1).await;
    assert_eq!(store.count("reject"), 0, "before it is published");

    unknown(&kafka, super::DEAD, false);
    until("the entry is to be FAILED", || store.count("reject") == 1).await;
    assert_eq!(letters(&config).len(), 1);
    assert_eq!(committed(&config, "orders", 1), [Some(1)], "before its key is FAILED");

    store.release();
    until_committed(&config, "orders", &[4]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!(letters(&config).len(), 1);
    assert_eq!((summary.received, summary.processed, summary.dead_lettered), (4, 3, 1));
    let rejected = |c: &campanile_core::Command| matches!(c.operation, Operation::Reject { .. });
    assert_eq!(store.commands().iter().filter(|c| rejected(c)).count(), 1);
    let told = outcomes.lock().unwrap().clone();
    assert_eq!(told, [(0, "processed"), (2, "parked"), (3, "processed")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_cannot_be_tried_are_dead_lettered_without_a_lock() {
    let bad = ["no json", r#"{"id":""}"#];
    let kafka = kafka(&[GOOD, bad[0], bad[1], PERMANENT, LAST]);
    let config = kafka.consumer_config("g");
    let store = FaultyStore::new(MemoryStore::new());
    let keeper = LockKeeper::new(store.clone()).unwrap();
    let serving = serve(burying(config.clone()), service(&keeper, 3, &Outcomes::default()));
    until_committed(&config, "orders", &[5]).await;
    let summary = serving.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered, summary.skipped), (2, 3, 0));
    let letters = letters(&config);
    assert_eq!(payloads(&letters), [Some(bad[0]), Some(bad[1]), Some(PERMANENT)]);
    let causes: Vec<_> = letters.iter().map(|letter| header(letter, "campanile-cause")).collect();
    assert_eq!(causes, ["undecodable", "missing-key", "failed"]);
    assert_eq!(store.count("reject"), 1);
    assert_eq!(store.count("acquire"), 3, "of the good ones and of the one that failed");
}
