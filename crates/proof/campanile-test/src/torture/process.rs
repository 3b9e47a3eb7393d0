//! A process: a runtime with all its tasks, a keeper, a connection to the store, and the user's stack.

use std::time::Duration;

use campanile_core::BoxError;
use campanile_idempotency::{LockKeeper, MemoryStore};
use futures_util::future::LocalBoxFuture;
use tokio::runtime::{Builder, Runtime};
use tokio::time;

use super::delivery::{Answer, Delivery};
use super::time::WorldTime;
use super::world::World;
use crate::TestClock;
use crate::faults::FaultyStore;

/// What all processes of a world share, and how they run.
#[derive(Clone)]
pub(super) struct Environment {
    pub(super) time: WorldTime,
    memory: MemoryStore,
    pub(super) has_real_time: bool,
}

/// The user's stack, without its types.
pub(super) type Stack<R> = Box<dyn Fn(R) -> LocalBoxFuture<'static, Answer>>;

pub(super) struct Process<R> {
    environment: Environment,
    runtime: Runtime,
    clock: TestClock,
    store: FaultyStore<MemoryStore>,
    /// `None` until the process is connected.
    stack: Option<Stack<R>>,
    /// The number of tasks of the stack when nothing happens.
    idle_tasks: usize,
}

impl Environment {
    pub(super) fn new(has_real_time: bool) -> Self {
        let time = WorldTime::default();
        Self { memory: MemoryStore::with_clock(time.store_clock()), time, has_real_time }
    }

    /// The value for virtual time, or the smaller one for real time.
    pub(super) fn of_time<T>(&self, in_virtual: T, in_real: T) -> T {
        if self.has_real_time { in_real } else { in_virtual }
    }
}

impl<R> Process<R> {
    /// Creates a process without a stack.
    pub(super) fn new(environment: &Environment) -> Self {
        let mut builder = Builder::new_current_thread();
        match environment.has_real_time {
            true => builder.enable_all(),
            // Without I/O, for which paused time would not wait.
            false => builder.enable_time().start_paused(true),
        };
        let runtime = builder.build().expect("the system has a few free file descriptors");
        let clock = runtime.block_on(async { TestClock::new() });
        let store = FaultyStore::new(environment.memory.clone());
        Self { environment: environment.clone(), runtime, clock, store, stack: None, idle_tasks: 0 }
    }

    /// Creates the user's stack, over a keeper of this process.
    pub(super) fn start(&mut self, world: &dyn World<R>) -> Result<(), BoxError> {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let stack = self.run(async || {
            let (keeper, background) = LockKeeper::pair(store, clock.keeper_clock());
            tokio::spawn(background);
            world.start(keeper).await
        })?;
        self.stack = Some(stack);
        self.idle_tasks = self.runtime.metrics().num_alive_tasks();
        Ok(())
    }

    /// Runs the process, and with it all its tasks, until the function has ended.
    pub(super) fn run<T>(&self, function: impl AsyncFnOnce() -> T) -> T {
        let world = &self.environment.time;
        self.runtime.block_on(async {
            world.resume(&self.clock);
            let output = function().await;
            world.suspend();
            output
        })
    }

    /// Waits before the next delivery. Takes no time, also on real time.
    pub(super) fn wait(&self, duration: Duration) {
        self.run(async || match self.environment.has_real_time {
            true => {
                time::pause();
                time::advance(duration).await;
                time::resume();
            }
            false => time::sleep(duration).await,
        });
    }

    /// Runs the process until the tasks have ended that were spawned since its start, for at most a minute.
    /// In real time: 100 ms.
    pub(super) fn finish_tasks(&self) {
        let step = self.environment.of_time(Duration::from_secs(1), Duration::from_millis(1));
        for _ in 0..self.environment.of_time(60, 100) {
            if self.runtime.metrics().num_alive_tasks() <= self.idle_tasks {
                return;
            }
            self.run(async || time::sleep(step).await);
        }
    }

    pub(super) fn store(&self) -> &FaultyStore<MemoryStore> {
        &self.store
    }

    /// Delivers a request to the stack.
    pub(super) fn deliver(&self, request: R) -> Delivery {
        let stack = self.stack.as_ref().expect("the process has started");
        let _context = self.runtime.enter();
        Delivery::new(stack(request), self.store.clone())
    }

    /// Drops a delivery.
    pub(super) fn drop_delivery(&self, delivery: Delivery) {
        let _context = self.runtime.enter();
        drop(delivery);
    }

    /// Kills the process: its tasks end, also those that would release its locks.
    pub(super) fn kill(self, delivery: Option<Delivery>) {
        let context = self.runtime.enter();
        drop((delivery, self.stack));
        drop(context);
        // Does not wait for blocking tasks.
        self.runtime.shutdown_background();
    }
}
