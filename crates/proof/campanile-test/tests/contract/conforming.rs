//! Stores that fulfill the contract.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use campanile_core::{Entry, StoreKey};
use campanile_idempotency::{EntryStore, MemoryStore, Stepped, StoreError};
use campanile_test::contract::{self, RealTime};
use campanile_test::faults::{Fault, FaultyStore};
use campanile_test::{TestClock, contract::Time};

#[tokio::test(start_paused = true)]
async fn memory_store_passes_contract() {
    let clock = TestClock::new();
    contract::run(&MemoryStore::with_clock(clock.store_clock()), &clock).await;
}

#[tokio::test(start_paused = true)]
async fn memory_store_expires_only_what_may_expire() {
    let clock = TestClock::new();
    contract::run_expire(&MemoryStore::with_clock(clock.store_clock()), &clock).await;
}

#[tokio::test]
async fn memory_store_passes_contract_in_real_time() {
    contract::run(&MemoryStore::new(), &RealTime).await;
    contract::run_expire(&MemoryStore::new(), &RealTime).await;
}

#[tokio::test(start_paused = true)]
async fn stepped_store_passes_contract() {
    let clock = TestClock::new();
    let store = Stepped::new(Table::new(clock.clone()));
    contract::run(&store, &clock).await;
}

#[tokio::test(start_paused = true)]
async fn slow_store_passes_contract() {
    let clock = TestClock::new();
    let store = FaultyStore::new(MemoryStore::with_clock(clock.store_clock()));
    // Not a microsecond, because tokio's timers have a resolution of a millisecond.
    store.inject_always(Fault::Slow(Duration::from_millis(1)));
    contract::run(&store, &SlowTime(clock)).await;
}

/// Leaves the clock alone: it advances because every call takes time.
struct SlowTime(TestClock);

impl Time for SlowTime {
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
        assert!(self.0.elapsed() > Duration::ZERO);
    }
}

#[tokio::test]
async fn random_operations_match_step() {
    let operations = std::env::var("CAMPANILE_DIFFERENTIAL_OPS");
    let operations = operations.map_or(5_000, |number| number.parse().unwrap());
    let seed = fastrand::u64(..);
    println!("seed {seed}, {operations} operations");
    contract::differential(&MemoryStore::new(), operations, seed).await;
}

/// A table with compare-and-set by revision. In every third load, a concurrent write of the same
/// entry wins, so that the swap fails.
#[derive(Clone)]
struct Table {
    clock: TestClock,
    rows: Arc<Mutex<HashMap<StoreKey, Row>>>,
    loads: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Row {
    revision: u64,
    entry: Option<(Entry, SystemTime)>,
}

impl Table {
    fn new(clock: TestClock) -> Self {
        Self { clock, rows: Arc::default(), loads: Arc::default() }
    }
}

impl EntryStore for Table {
    type Version = u64;

    async fn load(&self, key: &StoreKey) -> Result<(Option<Entry>, u64, SystemTime), StoreError> {
        tokio::task::yield_now().await;
        let now = self.clock.now();
        let mut rows = self.rows.lock().unwrap();
        let row = rows.entry(key.clone()).or_default();
        let version = row.revision;
        let entry = row.entry.clone().filter(|(_, until)| now < *until);
        if self.loads.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            row.revision += 1;
        }
        Ok((entry.map(|(entry, _)| entry), version, now))
    }

    async fn swap(
        &self,
        key: &StoreKey,
        version: u64,
        entry: Entry,
        retention: Duration,
    ) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        let until = self.clock.now() + retention;
        let mut rows = self.rows.lock().unwrap();
        let row = rows.entry(key.clone()).or_default();
        let is_same = row.revision == version;
        if is_same {
            row.revision += 1;
            row.entry = Some((entry, until));
        }
        Ok(is_same)
    }
}
