//! A process: a keeper, its connection to the store, and its requests.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Outcome, key};
use campanile_history::FaultKind;
use campanile_idempotency::policy::{OnDropped, OnExhausted, OnLocked};
use campanile_idempotency::{
    Backoff, IdempotencyConfig, IdempotencyError, IdempotencyLayer, LockKeeper, reply,
};
use fastrand::Rng;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::backend::{Backend, Connection};
use super::operations::ExclusiveCommands;
use super::requests::{Script, Stack};
use super::{Environment, HOUR};
use crate::history::HistoryRecorder;

pub(super) type SimulatedLayer = IdempotencyLayer<key::Key<key::Header>, reply::JsonReply>;

pub(super) struct Process<B: Backend> {
    id: u64,
    connection: Arc<B::Connection>,
    keeper: LockKeeper,
    task: JoinHandle<()>,
    layer: SimulatedLayer,
    recorder: HistoryRecorder,
    /// The file of the history of this process.
    file: PathBuf,
    requests: JoinSet<()>,
}

impl<B: Backend> Process<B> {
    pub(super) async fn start(environment: &Environment<B>, rng: &mut Rng) -> Self {
        let mut process = Self::without_faults(environment).await;
        let layer = process.layer;
        let layer =
            layer.on_exhausted(*choose(rng, &[OnExhausted::ReturnLock, OnExhausted::GiveUp]));
        let at_most = environment.world.plan.ttl * rng.u32(1..20);
        let layer = layer.on_locked(*choose(rng, &[OnLocked::Error, OnLocked::Wait { at_most }]));
        let dropped = [OnDropped::Fail, OnDropped::Release, OnDropped::Expire];
        process.layer = layer.on_dropped(*choose(rng, &dropped));
        if environment.world.plan.has_faults() {
            process.connection.inject_faults(rng);
        }
        process
    }

    /// Starts a process on a store without faults.
    pub(super) async fn without_faults(environment: &Environment<B>) -> Self {
        let id = environment.start_process();
        let world = &environment.world;
        let name = process_name(id);
        let clock = environment.history_clock.clone();
        let recorder = HistoryRecorder::with_clock(environment.folder.path(), &*name, None, clock);
        let connection = environment.backend.connect(&name).await;
        let exclusive = ExclusiveCommands { store: connection.store(), in_flight: Arc::default() };
        let (keeper, task) = LockKeeper::pair(exclusive, world.clock.keeper_clock());
        let plan = &world.plan;
        let config = IdempotencyConfig::new("payments")
            .with_lock_ttl(plan.ttl)
            .with_max_hold(plan.max_hold)
            .with_max_attempts(plan.max_attempts.into())
            .with_backoff(Backoff::new(plan.ttl / 20, plan.ttl * 2).unwrap());
        let layer = IdempotencyLayer::new(&keeper, config, key::header("id")).unwrap();
        Self {
            id,
            connection: Arc::new(connection),
            keeper,
            task: tokio::spawn(task),
            layer: layer.with_reply(reply::json()).on_lost(plan.on_lost),
            recorder: recorder.unwrap(),
            file: environment.folder.path().join(format!("{name}.jsonl")),
            requests: JoinSet::new(),
        }
    }

    /// The stack for one request.
    fn stack(&self) -> Stack {
        Stack { process: self.id, layer: self.layer.clone(), recorder: self.recorder.clone() }
    }

    /// Starts a random request.
    pub(super) fn request(&mut self, environment: &Arc<Environment<B>>, rng: &mut Rng) {
        let script = Script::random(&environment.world.plan, rng);
        let record = environment.send_record(script.key);
        self.requests.spawn(script.run(environment.clone(), self.stack(), record));
    }

    /// Makes the store unavailable to this process for a while: calls are not applied, or their
    /// replies are lost.
    pub(super) fn outage(&mut self, rng: &mut Rng) {
        self.connection.break_for(Duration::from_secs_f64(rng.f64() * 40.0), rng);
    }

    /// Crashes the process: first the keeper, which could still send commands to the store.
    pub(super) async fn crash(mut self, environment: &Environment<B>) {
        let written = self.file.metadata().unwrap().len();
        let recorder = &environment.world.recorder;
        let killed = FaultKind::Killed { process: process_name(self.id) };
        recorder.fault(recorder.now(), Some(recorder.now()), killed);
        self.task.abort();
        // No request may end while the keeper does: its answer would be missing from the history.
        self.requests.abort_all();
        let ended = self.task.await;
        assert!(ended.unwrap_err().is_cancelled(), "the keeper panicked");
        self.requests.shutdown().await;
        // A killed process does not record that its handlers were dropped.
        File::options().write(true).open(self.file).unwrap().set_len(written).unwrap();
        self.connection.heal();
        environment.end_process(self.id);
    }

    /// Waits for the requests to end, and then for the keeper.
    pub(super) async fn close(mut self, environment: Arc<Environment<B>>, healed: bool) {
        if healed {
            self.connection.heal();
        } else {
            let _ = self.keeper.shutdown(Duration::from_secs(1)).await;
        }
        // The random faults never make a store unavailable forever; only the assertion below needs
        // this.
        let connection = self.connection.clone();
        tokio::spawn(async move {
            sleep(HOUR / 2).await;
            connection.heal();
        });
        while let Some(request) = self.requests.join_next().await {
            request.unwrap();
        }
        let report = self.keeper.shutdown(HOUR).await;
        assert!(report.settled, "the keeper has unsettled locks");
        // A store that loses a cancel has the lock again.
        if !environment.backend.has_lost_writes()
            && let Some(violation) = self.connection.violation_when_settled()
        {
            panic!("{violation}");
        }
        drop((self.keeper, self.layer));
        let ended = timeout(HOUR, self.task).await;
        ended.expect("the keeper ends with its last handle").unwrap();
        self.connection.heal();
        environment.end_process(self.id);
    }

    /// Delivers a record until it is finished.
    pub(super) async fn finish(&self, environment: &Environment<B>, offset: usize) {
        let record = environment.record(offset);
        for tries in 0.. {
            assert!(tries < 50, "{record:?} is never finished");
            let result = self.stack().run_to_success(environment, record.clone()).await;
            let error = match result {
                Ok(Outcome::Processed(_) | Outcome::Duplicate(_) | Outcome::GivenUp(_)) => return,
                Ok(other) => panic!("{other:?}"),
                Err(error) => error,
            };
            match IdempotencyError::find(&*error).unwrap() {
                IdempotencyError::Exhausted(exhausted) => {
                    let lock = exhausted.take_lock().unwrap();
                    lock.give_up("").await.unwrap();
                }
                error => {
                    assert!(error.is_contention(), "{error:?}");
                    sleep(Duration::from_secs(10 * 60)).await;
                }
            }
        }
    }
}

pub(super) fn process_name(id: u64) -> String {
    format!("process-{id}")
}

pub(super) fn choose<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    rng.choice(choices).expect("at least one choice")
}
