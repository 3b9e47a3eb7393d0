//! The stores that a simulation can run over.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{Entry, StoreKey};
use campanile_history::{FaultKind, Peer};
use campanile_idempotency::{MemoryStore, Store};
use fastrand::Rng;
use tokio::time::sleep;

use super::World;
use super::operations::RecordingStore;
use super::process::choose;
use crate::faults::{Fault, FaultyStore};

/// A store, the ways to it, and their faults.
///
/// Each fault must be recorded in the [history](World::recorder), and each operation that the store
/// applies in the [operations](World::operations).
pub trait Backend: Send + Sync + 'static {
    /// The connection of a process.
    type Connection: Connection;

    /// Creates the store, without entries.
    fn start(world: &World, rng: &mut Rng) -> Self;

    /// Connects a process, without faults at first.
    fn connect(&self, process: &str) -> impl Future<Output = Self::Connection> + Send;

    /// Breaks the store itself for a while, for all processes.
    fn break_store(&self, rng: &mut Rng);

    /// Ends the faults of the store itself.
    fn heal(&self);

    /// Checks whether the store has lost entries that it had written, so that two owners can hold a
    /// lock.
    fn has_lost_writes(&self) -> bool;

    /// The entry of a key.
    fn entry(&self, key: &StoreKey) -> Option<Entry>;
}

/// The connection of a process to the store.
pub trait Connection: Send + Sync + 'static {
    /// The store of the process.
    type Store: Store;

    /// The store of the process.
    fn store(&self) -> Self::Store;

    /// Injects faults at random from now on.
    fn inject_faults(&self, rng: &mut Rng);

    /// Breaks the connection for this time.
    fn break_for(&self, duration: Duration, rng: &mut Rng);

    /// Ends all faults.
    fn heal(&self);

    /// Called when the process has settled all its locks. Returns what is wrong then.
    fn violation_when_settled(&self) -> Option<String>;
}

/// A memory store, with faults of its calls.
#[derive(Debug)]
pub struct Memory {
    world: World,
    store: MemoryStore,
}

impl Backend for Memory {
    type Connection = MemoryConnection;

    fn start(world: &World, _: &mut Rng) -> Self {
        let clock = world.store_clock.clone();
        let store = MemoryStore::with_clock(move || clock.now());
        Self { world: world.clone(), store }
    }

    async fn connect(&self, process: &str) -> MemoryConnection {
        let operations = self.world.operations.clone();
        let store = RecordingStore { memory: self.store.clone(), operations };
        MemoryConnection(Arc::new(Shared {
            store: FaultyStore::new(store),
            odds: Mutex::default(),
            process: process.into(),
            since: self.world.recorder.now(),
            world: self.world.clone(),
        }))
    }

    fn break_store(&self, _: &mut Rng) {}

    fn heal(&self) {}

    fn has_lost_writes(&self) -> bool {
        false
    }

    fn entry(&self, key: &StoreKey) -> Option<Entry> {
        self.store.entry(key)
    }
}

/// The connection of a process to the memory store.
#[derive(Debug)]
pub struct MemoryConnection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: FaultyStore<RecordingStore>,
    odds: Mutex<Vec<(f64, Fault)>>,
    process: String,
    since: u64,
    world: World,
}

impl Connection for MemoryConnection {
    type Store = FaultyStore<RecordingStore>;

    fn store(&self) -> Self::Store {
        self.0.store.clone()
    }

    fn inject_faults(&self, rng: &mut Rng) {
        let plan = &self.0.world.plan;
        let odds = [
            (0.15, Fault::LoseReply),
            (0.10, Fault::Refuse),
            (0.05, Fault::Hang),
            (0.05, Fault::HangReply),
            (0.15, Fault::Slow(plan.ttl / 50)),
            (0.03, Fault::FewerAnswers),
            (0.03, Fault::MoreAnswers),
            (0.03, Fault::Panic),
        ];
        let odds: Vec<_> =
            odds.into_iter().map(|(odds, fault)| (odds * plan.fault_rate, fault)).collect();
        self.0.odds.lock().unwrap().clone_from(&odds);
        self.0.store.inject_randomly(rng.u64(..), odds);
    }

    fn break_for(&self, duration: Duration, rng: &mut Rng) {
        let faults = [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply];
        self.0.store.inject_always(*choose(rng, &faults));
        let (shared, seed) = (self.0.clone(), rng.u64(..));
        tokio::spawn(async move {
            sleep(duration).await;
            shared.store.heal();
            shared.store.inject_randomly(seed, shared.odds.lock().unwrap().clone());
        });
    }

    /// The faults concern single calls, so their intervals are not known. They all count as one cut.
    fn heal(&self) {
        let Shared { odds, store, process, since, world } = &*self.0;
        odds.lock().unwrap().clear();
        store.heal();
        if !world.plan.has_faults() {
            return;
        }
        let cut = FaultKind::NetworkCut { process: Some(process.clone()), peer: Peer::Store };
        world.recorder.fault(*since, Some(world.recorder.now()), cut);
    }

    fn violation_when_settled(&self) -> Option<String> {
        None
    }
}
