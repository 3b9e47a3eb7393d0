//! A consumer in its own process, and its faults.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use campanile_test::history::{Begin, FaultKind};
use campanile_test::{Process, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::history::TestHistory;

/// A short session timeout and heartbeat interval, so that the group soon notices a dead consumer.
pub(crate) const SHORT_SESSION: &[&str] = &["session.timeout.ms=3000", "heartbeat.interval.ms=300"];

/// How long a process may take until it begins its history.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a process may take to stop, on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that records its history. The test records what it does to the process.
pub(crate) struct Worker {
    process: Process,
    /// The name of the process in the history.
    name: String,
    /// The folder of the history.
    folder: PathBuf,
    /// When the process was suspended.
    paused: Option<u64>,
}

impl Worker {
    /// Starts a worker with these options.
    pub(crate) fn spawn(
        bootstrap: &str,
        group: &str,
        topic: &str,
        store: &str,
        history: &TestHistory,
        options: &[&str],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
        command.args([bootstrap, group, topic, store]).arg(history.folder()).args(options);
        Self::start(&command, history)
    }

    /// Starts a program, which calls itself `PROGRAM-PID` in the history.
    pub(crate) fn start(command: &Command, history: &TestHistory) -> Self {
        let program = Path::new(command.get_program()).file_name().unwrap().to_str().unwrap();
        let mut worker = Self::start_named(command, history, String::new());
        worker.name = format!("{program}-{}", worker.process.pid());
        worker
    }

    /// Starts a program, which calls itself by this name in the history.
    pub(crate) fn start_named(command: &Command, history: &TestHistory, name: String) -> Self {
        let log = history.folder().join(format!("log-{}", fastrand::u64(..)));
        let process = Process::spawn(command, log).unwrap();
        Self { process, name, folder: history.folder().to_owned(), paused: None }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn log(&self) -> String {
        self.process.log().unwrap()
    }

    /// Checks that the worker has not exited.
    pub(crate) fn expect_running(&mut self) {
        let exit_status = self.exited();
        assert_eq!(exit_status, None, "{} exited on its own: {}", self.name, self.log());
    }

    /// Checks whether the worker has exited, and how.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited().unwrap()
    }

    /// Stops the worker gracefully.
    pub(crate) fn stop(mut self) {
        let begun = || {
            self.expect_running();
            self.has_begun().then_some(())
        };
        let begun = eventually(START_TIMEOUT, begun);
        assert!(begun.is_some(), "{} has not begun its history: {}", self.name, self.log());
        self.request_stop();
        let status = self.process.wait(STOP_TIMEOUT).unwrap();
        assert!(status.is_some_and(|it| it.success()), "{status:?}: {}", self.log());
    }

    /// Checks whether the worker has begun its history. It catches signals before it does.
    pub(crate) fn has_begun(&self) -> bool {
        self.folder.join(format!("{}.jsonl", self.name)).exists()
    }

    /// Asks the worker, which runs, to stop gracefully.
    pub(crate) fn request_stop(&self) {
        let pid = Pid::from_raw(self.process.pid() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    pub(crate) fn kill(mut self, history: &TestHistory) {
        let at = history.recorder.now();
        self.process.kill().unwrap();
        let kind = FaultKind::Killed { process: self.name.clone() };
        history.recorder.fault(at, Some(history.recorder.now()), kind);
        self.record_suspension(history);
    }

    pub(crate) fn pause(&mut self, history: &TestHistory) {
        self.paused = Some(history.recorder.now());
        self.process.pause().unwrap();
    }

    /// Suspends the worker if one of its handlers runs, and returns the begin of that run.
    pub(crate) fn pause_running(&mut self, history: &TestHistory) -> Option<Begin> {
        self.pause(history);
        let progress = history.progress();
        let running = progress.runs_of(&self.name).find(|run| run.end.is_none());
        if running.is_none() {
            self.process.resume().unwrap();
            self.paused = None;
        }
        running.map(|run| run.begin.clone())
    }

    pub(crate) fn resume(&mut self, history: &TestHistory) {
        self.process.resume().unwrap();
        self.record_suspension(history);
    }

    fn record_suspension(&mut self, history: &TestHistory) {
        if let Some(from) = self.paused.take() {
            let kind = FaultKind::Suspended { process: self.name.clone() };
            history.recorder.fault(from, Some(history.recorder.now()), kind);
        }
    }
}
