//! A process: a keeper, its connection to the store, and its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{BoxError, FencingToken, Outcome, Request};
use campanile_idempotency::policy::{OnDropped, OnExhausted, OnLocked, OnLost};
use campanile_idempotency::{Backoff, IdempotencyConfig, IdempotencyLayer, LockKeeper, reply};
use campanile_test::faults::{Fault, FaultyStore};
use fastrand::Rng;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use super::Environment;
use super::history::{ExclusiveCommands, RecordingStore};
use super::requests::Script;
use crate::harness::{HOUR, request};

pub(super) type SimulatedLayer =
    IdempotencyLayer<campanile_core::key::Key<campanile_core::key::Header>, reply::JsonReply>;

pub(super) struct Process {
    id: u64,
    store: FaultyStore<RecordingStore>,
    keeper: LockKeeper,
    task: JoinHandle<()>,
    layer: SimulatedLayer,
    requests: JoinSet<()>,
    fault_odds: Vec<(f64, Fault)>,
}

impl Process {
    pub(super) fn start(environment: &Environment, rng: &mut Rng) -> Self {
        let mut process = Self::without_faults(environment);
        let layer = process.layer;
        let layer =
            layer.on_exhausted(*choose(rng, &[OnExhausted::ReturnLock, OnExhausted::GiveUp]));
        let layer = layer.on_lost(*choose(rng, &[OnLost::Cancel, OnLost::Notify]));
        let at_most = environment.plan.ttl * rng.u32(1..20);
        let layer = layer.on_locked(*choose(rng, &[OnLocked::Error, OnLocked::Wait { at_most }]));
        let dropped = [OnDropped::Fail, OnDropped::Release, OnDropped::Expire];
        process.layer = layer.on_dropped(*choose(rng, &dropped));
        process.fault_odds = environment.plan.fault_odds();
        process.store.inject_randomly(rng.u64(..), process.fault_odds.clone());
        process
    }

    /// Starts a process on a store without faults.
    pub(super) fn without_faults(environment: &Environment) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let store = FaultyStore::new(RecordingStore {
            memory: environment.memory.clone(),
            history: environment.history.clone(),
        });
        let exclusive = ExclusiveCommands { store: store.clone(), in_flight: Arc::default() };
        let (keeper, task) = LockKeeper::pair(exclusive, environment.clock.keeper_clock());
        let plan = &environment.plan;
        let config = IdempotencyConfig::new("payments")
            .with_lock_ttl(plan.ttl)
            .with_max_hold(plan.max_hold)
            .with_max_attempts(plan.max_attempts.into())
            .with_backoff(Backoff::new(plan.ttl / 20, plan.ttl * 2).unwrap());
        let layer = IdempotencyLayer::new(&keeper, config, campanile_core::key::header("id"));
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            store,
            keeper,
            task: tokio::spawn(task),
            layer: layer.unwrap().with_reply(reply::json()),
            requests: JoinSet::new(),
            fault_odds: Vec::new(),
        }
    }

    /// Starts a random request.
    pub(super) fn request(&mut self, environment: &Arc<Environment>, rng: &mut Rng) {
        let script = Script::random(&environment.plan, rng);
        let request = script.run(environment.clone(), self.layer.clone(), self.id);
        self.requests.spawn(request);
    }

    /// Makes the store unavailable for a while: calls are not applied, or their replies are lost.
    pub(super) fn outage(&mut self, rng: &mut Rng) {
        let (store, fault_odds, seed) = (self.store.clone(), self.fault_odds.clone(), rng.u64(..));
        let fault = [Fault::Refuse, Fault::LoseReply, Fault::Hang, Fault::HangReply];
        store.inject_always(*choose(rng, &fault));
        let duration = Duration::from_secs_f64(rng.f64() * 40.0);
        tokio::spawn(async move {
            sleep(duration).await;
            store.heal();
            store.inject_randomly(seed, fault_odds);
        });
    }

    /// Crashes the process: first the keeper, which could still send commands to the store.
    pub(super) async fn crash(mut self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.unwrap_err().is_cancelled(), "the keeper panicked");
        self.requests.shutdown().await;
    }

    /// Waits for the requests to end, and then for the keeper.
    pub(super) async fn close(mut self, healed: bool) {
        if healed {
            self.store.heal();
        } else {
            let _ = self.keeper.shutdown(Duration::from_secs(1)).await;
        }
        // The random faults never make a store unavailable forever; only the assertion below needs
        // this.
        let store = self.store.clone();
        tokio::spawn(async move {
            sleep(HOUR / 2).await;
            store.heal();
        });
        while let Some(request) = self.requests.join_next().await {
            request.unwrap();
        }
        let report = self.keeper.shutdown(HOUR).await;
        assert!(report.settled, "the keeper has unsettled locks");
        drop((self.keeper, self.layer));
        let ended = timeout(HOUR, self.task).await;
        ended.expect("the keeper ends with its last handle").unwrap();
    }

    /// Runs a request with a handler that returns its token at once.
    pub(super) async fn run_to_success(
        &self,
        environment: &Environment,
        key: usize,
    ) -> Result<Outcome<u64>, BoxError> {
        let (handlers, process) = (environment.handlers.clone(), self.id);
        let service = self.layer.clone().layer(service_fn(move |request: Request<()>| {
            let lock = request.lock_handle().unwrap().clone();
            let work = handlers.start(process, &lock);
            async move {
                drop(work);
                Ok::<_, BoxError>(FencingToken::get(lock.token()))
            }
        }));
        service.oneshot(request(&key.to_string())).await
    }
}

pub(super) fn choose<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    rng.choice(choices).expect("at least one choice")
}
