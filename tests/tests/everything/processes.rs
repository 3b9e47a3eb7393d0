//! The processes of a group, and their faults.

use std::process::Command;
use std::thread;

use campanile_test::eventually;
use campanile_tests::not_live_file;

use crate::faults::{Injector, TICK};
use crate::history::TestHistory;
use crate::scenario::{Kind, Program};
use crate::worker::Worker;
use crate::{LOCK_TTL, TIMEOUT};

/// The largest number of processes, and that at the start and at the end.
const SLOTS: usize = 4;
const STARTED: usize = 3;

/// The pauses between two faults of processes, in milliseconds.
const PAUSE: std::ops::Range<u64> = 1_500..9_000;

/// How long a process is suspended, in milliseconds: also for longer than its locks and its session
/// last.
const SUSPENSION: std::ops::Range<u64> = 100..14_000;

/// What a process says that does not begin, because it could not rely on its store.
const UNSAFE_STORE: &str = "is not safe to use";

pub(crate) struct Processes {
    kind: Kind,
    bootstrap: String,
    store: String,
    slots: [Slot; SLOTS],
    started: usize,
    /// How many were killed because they were not live.
    not_live: usize,
}

/// A place for a process, with a transactional id of its own.
enum Slot {
    Empty,
    Running(Worker),
    /// Until this time of the history.
    Suspended(Worker, u64),
    /// Asked to stop.
    Stopping(Worker),
}

impl Processes {
    pub(crate) fn new(kind: Kind, bootstrap: String, store: String) -> Self {
        let slots = [const { Slot::Empty }; SLOTS];
        Self { kind, bootstrap, store, slots, started: 0, not_live: 0 }
    }

    /// The number of processes so far.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    /// The number of processes that were killed because they were not live.
    pub(crate) fn not_live(&self) -> usize {
        self.not_live
    }

    /// Kills, suspends, stops and starts processes until the campaign is over.
    pub(crate) fn inject_faults(&mut self, history: &TestHistory, mut injector: Injector<'_>) {
        for slot in 0..STARTED {
            self.start(slot, history);
        }
        let mut next = self.next_fault(&mut injector);
        while !injector.faults.is_over() {
            self.tick(history);
            if injector.now() >= next {
                self.inject(history, &mut injector);
                next = self.next_fault(&mut injector);
            }
            thread::sleep(TICK);
        }
        for slot in 0..SLOTS {
            self.resume(slot, history);
        }
        eventually(TIMEOUT, || {
            self.tick(history);
            (!self.slots.iter().any(|slot| matches!(slot, Slot::Stopping(_)))).then_some(())
        })
        .unwrap_or_else(|| panic!("a process does not stop: {}", self.logs()));
        for slot in 0..STARTED {
            if matches!(self.slots[slot], Slot::Empty) {
                self.start(slot, history);
            }
        }
    }

    /// Keeps the processes running: replaces those that are not live.
    pub(crate) fn keep_running(&mut self, history: &TestHistory) {
        self.tick(history);
    }

    /// Stops all processes gracefully.
    pub(crate) fn stop(&mut self, history: &TestHistory) {
        eventually(TIMEOUT, || {
            (0..SLOTS).for_each(|slot| self.request_stop(slot));
            self.tick(history);
            self.slots.iter().all(|slot| matches!(slot, Slot::Empty)).then_some(())
        })
        .unwrap_or_else(|| panic!("a process does not stop: {}", self.logs()));
    }

    fn next_fault(&self, injector: &mut Injector<'_>) -> u64 {
        injector.now() + injector.millis(PAUSE).as_micros() as u64
    }

    /// Resumes processes that are suspended for long enough, checks which have exited, and replaces those
    /// that are not live.
    fn tick(&mut self, history: &TestHistory) {
        let now = history.recorder.now();
        for slot in 0..SLOTS {
            match &mut self.slots[slot] {
                Slot::Suspended(_, until) if *until <= now => self.resume(slot, history),
                Slot::Running(worker) => {
                    if let Some(status) = worker.exited() {
                        let (name, log) = (worker.name(), worker.log());
                        // It has begun while an operator allowed eviction, and is started again.
                        let is_refusal = log.contains(UNSAFE_STORE);
                        assert!(is_refusal, "{name} has exited on its own with {status}: {log}");
                        self.start(slot, history);
                    } else if not_live_file(history.folder(), worker.name()).exists() {
                        self.not_live += 1;
                        self.kill(slot, history);
                        self.start(slot, history);
                    }
                }
                Slot::Stopping(worker) => {
                    if let Some(status) = worker.exited() {
                        let (name, log) = (worker.name(), worker.log());
                        let is_expected = status.success() || log.contains(UNSAFE_STORE);
                        assert!(is_expected, "{name} has stopped with {status}: {log}");
                        self.slots[slot] = Slot::Empty;
                    }
                }
                _ => {}
            }
        }
    }

    fn inject(&mut self, history: &TestHistory, injector: &mut Injector<'_>) {
        let slot = injector.rng.usize(..SLOTS);
        let action = injector.rng.u8(..10);
        match (&self.slots[slot], action) {
            (Slot::Empty, _) => {
                self.start(slot, history);
            }
            (Slot::Running(_), 0..4) if !injector.faults.allows("process suspended") => {}
            (Slot::Running(_), 4..6) if !injector.faults.allows("process stopped") => {}
            (_, 6..) if !injector.faults.allows("process killed") => {}
            (Slot::Running(_), 0..4) => {
                injector.faults.count("process suspended");
                let until = injector.now() + injector.millis(SUSPENSION).as_micros() as u64;
                if let Slot::Running(mut worker) = self.take(slot) {
                    worker.pause(history);
                    self.slots[slot] = Slot::Suspended(worker, until);
                }
            }
            (Slot::Running(worker), 4..6) => {
                if worker.has_begun() {
                    injector.faults.count("process stopped");
                    self.request_stop(slot);
                }
            }
            // Most processes are replaced at once.
            _ => {
                injector.faults.count("process killed");
                self.kill(slot, history);
                if action != 9 {
                    self.start(slot, history);
                }
            }
        }
    }

    fn take(&mut self, slot: usize) -> Slot {
        std::mem::replace(&mut self.slots[slot], Slot::Empty)
    }

    fn kill(&mut self, slot: usize, history: &TestHistory) {
        if let Slot::Running(worker) | Slot::Suspended(worker, _) | Slot::Stopping(worker) =
            self.take(slot)
        {
            worker.kill(history);
        }
    }

    fn resume(&mut self, slot: usize, history: &TestHistory) {
        match self.take(slot) {
            Slot::Suspended(mut worker, _) => {
                worker.resume(history);
                self.slots[slot] = Slot::Running(worker);
            }
            other => self.slots[slot] = other,
        }
    }

    /// Asks a process to stop, if it has started so far that it catches the signal.
    fn request_stop(&mut self, slot: usize) {
        match self.take(slot) {
            Slot::Running(worker) if worker.has_begun() => {
                worker.request_stop();
                self.slots[slot] = Slot::Stopping(worker);
            }
            other => self.slots[slot] = other,
        }
    }

    fn start(&mut self, slot: usize, history: &TestHistory) {
        let Self { kind, bootstrap, store, started, .. } = self;
        *started += 1;
        let (topic, folder) = (kind.topic(), history.folder());
        let mut command = Command::new(match kind.program {
            Program::Worker => env!("CARGO_BIN_EXE_worker"),
            Program::Booker => env!("CARGO_BIN_EXE_booker"),
            Program::Biller => env!("CARGO_BIN_EXE_biller"),
        });
        command.args([&*bootstrap, &*topic, &*topic]);
        let name = format!("{}-{started}", kind.name);
        let store = match store.starts_with("postgres:") {
            true => format!("{store}?application_name={name}"),
            false => store.clone(),
        };
        match kind.program {
            Program::Worker | Program::Booker => command.arg(&*store),
            Program::Biller => {
                command.args([&kind.invoices(), &format!("{topic}-{slot}"), &*store])
            }
        };
        command.arg(folder).args(kind.options);
        if kind.program == Program::Worker {
            let order = format!("{:?}", kind.order).to_lowercase();
            command.arg(format!("order={order}"));
            command.arg(format!("dead_letters={}", kind.dead_letters()));
        } else {
            command.arg("slow_ms=1000");
        }
        if kind.program == Program::Booker {
            command.arg("timeout_ms=10000");
        }
        // The quotas of the group's clients.
        command.arg(format!("client.id={}", kind.name));
        if kind.has_retries {
            command.arg(format!("retries={}", kind.retries()));
        }
        command.arg(format!("lock_ms={}", LOCK_TTL.as_millis())).arg(format!("process={name}"));
        self.slots[slot] = Slot::Running(Worker::start_named(&command, history, name));
    }

    fn logs(&self) -> String {
        let stopping = self.slots.iter().filter_map(|slot| match slot {
            Slot::Stopping(worker) => Some(format!("{}: {}", worker.name(), worker.log())),
            _ => None,
        });
        stopping.collect()
    }
}
