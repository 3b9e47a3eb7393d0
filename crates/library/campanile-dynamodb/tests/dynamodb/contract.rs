//! The contract of all stores.

use campanile_core::Reply;
use campanile_idempotency::Store;
use campanile_test::contract::{self, RealTime};

use crate::support::{Table, acquire, command, key};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_keeps_the_contract_of_all_stores() {
    let table = Table::new().await;
    contract::run(&table.store().await, &RealTime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_answer_as_step_does() {
    let table = Table::new().await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    contract::differential(&table.store().await, 2000, seed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_racing_handles_gets_the_lock() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    for round in 0..50 {
        let key = key(&format!("race-{round}"));
        let (left, right) = tokio::join!(
            first.apply(command(&key, acquire(1))),
            second.apply(command(&key, acquire(2))),
        );
        let replies = [left.unwrap().reply, right.unwrap().reply];
        let count = |wanted: fn(&Reply) -> bool| replies.iter().filter(|it| wanted(it)).count();
        assert_eq!(count(|it| matches!(it, Reply::Acquired { attempt: 1, .. })), 1, "{replies:?}");
        assert_eq!(count(|it| matches!(it, Reply::Locked { .. })), 1, "{replies:?}");
    }
}
