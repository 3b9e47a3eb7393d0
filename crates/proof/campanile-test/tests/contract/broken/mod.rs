//! Stores with one bug each. Most of these bugs exist in real implementations.

mod expire;
mod steps;
mod stores;

use campanile_idempotency::Store;
use campanile_test::{TestClock, contract};

const DIFFERENTIAL: &str = "random_operations_answer_as_step_does";

async fn assert_violates(store: &impl Store, clock: &TestClock, promises: &[&str]) {
    let found = contract::violations(store, clock).await;
    let found: Vec<_> = found.iter().map(|violation| violation.guarantee).collect();
    for promise in promises {
        assert!(found.contains(promise), "expected {promise}, got {found:#?}");
    }
}
