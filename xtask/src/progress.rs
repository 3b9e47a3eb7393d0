//! Runs commands, and shows what is being done.

use crate::Result;
use crate::supervise::{Finished, supervise};
use std::cell::RefCell;
use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Shows each step with the elapsed time, and the duration of each phase.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    phases: RefCell<Vec<(&'static str, Duration)>>,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { start: now(), phases: RefCell::default() }
    }

    /// Shows the next step and the time since the start.
    pub fn step(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.start.elapsed().as_secs_f64());
    }

    /// Shows how the whole command ended. Returns its exit code.
    pub fn finish(&self, result: Result<String>) -> ExitCode {
        match result {
            Ok(message) => {
                self.step(&message);
                ExitCode::SUCCESS
            }
            Err(error) => {
                self.step(&format!("failed: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    /// Runs a phase and records its duration, even if it fails.
    pub(crate) fn phase<T>(&self, name: &'static str, run: impl FnOnce() -> T) -> T {
        let start = now();
        let result = run();
        self.phases.borrow_mut().push((name, start.elapsed()));
        result
    }

    /// Shows the duration of each phase.
    pub(crate) fn show_phases(&self) {
        for (name, duration) in &*self.phases.borrow() {
            eprintln!("{:8.1} s  {name}", duration.as_secs_f64());
        }
    }

    /// Shows a command and runs it. The command inherits our output.
    pub(crate) fn run(&self, command: &mut Command) -> Result {
        self.step(&format!("{command:?}"));
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
    }

    /// Shows a command and runs it for at most `timeout`, as [`supervise`] does.
    pub(crate) fn supervise(
        &self,
        command: &mut Command,
        timeout: Duration,
        output: &mut impl Write,
    ) -> Result<Finished> {
        self.step(&format!("{command:?}"));
        Ok(supervise(command, timeout, output).map_err(|error| format!("{command:?}: {error}"))?)
    }
}

/// Reads the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "deadlines of programs and displayed times; no lock depends on them"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// The cargo that started this program, in the root of the workspace.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The root of the workspace: the folder of the lock file that is nearest above the package that cargo runs.
/// Not the one where this program was compiled, because checkouts may share a target directory.
pub fn root() -> PathBuf {
    let compiled = || env!("CARGO_MANIFEST_DIR").into();
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(compiled));
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("a package is in the workspace").to_owned()
}
