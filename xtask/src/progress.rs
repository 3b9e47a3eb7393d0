//! Runs commands, and shows what is being done.

use crate::Result;
use crate::supervise::{describe_timeout, supervise};
use std::cell::RefCell;
use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The command with which cargo starts a binary through this program; see [`cargo_with_deadline`].
pub(crate) const SUPERVISE: &str = "supervise";

/// Cargo's argument for a setting.
const CONFIG: &str = "--config";

/// Shows each step with the elapsed time, and the duration of each phase.
pub(crate) struct Progress {
    start: Instant,
    phases: RefCell<Vec<(&'static str, Duration)>>,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { start: now(), phases: RefCell::default() }
    }

    /// Shows the next step and the time since the start.
    pub(crate) fn step(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.start.elapsed().as_secs_f64());
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
        let shown = command_line(command);
        self.step(&shown);
        let status =
            command.status().map_err(|error| format!("failed to run `{shown}`: {error}"))?;
        check_status(&shown, status)
    }

    /// Shows a command and runs it for at most `deadline`. Returns the lines of its standard output,
    /// and how the command ended. Copies the lines to `output` as they arrive.
    pub(crate) fn run_and_collect(
        &self,
        command: &mut Command,
        deadline: Duration,
        output: &mut impl Write,
    ) -> Result<(Vec<String>, Result)> {
        let shown = command_line(command);
        self.step(&shown);
        let finished = supervise(command, deadline, output)
            .map_err(|error| format!("failed to run `{shown}`: {error}"))?;
        let result = match finished.status {
            Some(status) => check_status(&shown, status),
            None => {
                Err(describe_timeout(command, deadline, &format!("`{shown}`"), &finished.lines)
                    .into())
            }
        };
        Ok((finished.lines, result))
    }
}

/// Reads the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "deadlines of programs and displayed times; no lock depends on them"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn check_status(shown: &str, status: ExitStatus) -> Result {
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}").into()) }
}

/// The cargo that started this program, in the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// A cargo command that runs every binary through this program, with this deadline.
///
/// Folders and environment are thus set by cargo itself. The runner is an argument, because an
/// environment variable would also affect the cargo builds of the tests.
pub(crate) fn cargo_with_deadline(deadline: Duration) -> Result<Command> {
    let runner = env::current_exe()?;
    let runner = runner.to_str().ok_or("the path of this program is not UTF-8")?;
    let mut cargo = cargo();
    cargo.args([CONFIG, &runner_config(runner, deadline)]);
    Ok(cargo)
}

fn runner_config(runner: &str, deadline: Duration) -> String {
    let seconds = deadline.as_secs();
    format!("target.'cfg(all())'.runner=[{runner:?}, '{SUPERVISE}', '{seconds}']")
}

/// The root of the workspace. Prefers the variable that cargo sets at run time, because this
/// program may have been compiled in another checkout, if both share a target directory.
pub(crate) fn root() -> PathBuf {
    let compiled = || env!("CARGO_MANIFEST_DIR").into();
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(compiled));
    here.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Formats the command as it would be typed.
fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = Vec::new();
    for (variable, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        let variable = variable.to_string_lossy();
        if value.contains(' ') {
            words.push(format!("{variable}='{value}'"));
        } else {
            words.push(format!("{variable}={value}"));
        }
    }
    words.push(name.to_string_lossy().into_owned());
    let mut args = command.get_args();
    while let Some(arg) = args.next() {
        if arg == CONFIG {
            // Skip the runner: the command can be repeated without it.
            args.next();
        } else {
            words.push(arg.to_string_lossy().into_owned());
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn command_that_fails_keeps_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; exit 1"]);
        let (lines, result) = Progress::start()
            .run_and_collect(&mut command, Duration::from_secs(60), &mut io::sink())
            .unwrap();
        assert_eq!(lines, ["one"]);
        assert_eq!(
            result.unwrap_err().to_string(),
            "`sh -c echo one; exit 1` failed: exit status: 1"
        );
    }

    #[test]
    fn command_that_hangs_fails_and_keeps_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; sleep 600"]);
        let (lines, result) = Progress::start()
            .run_and_collect(&mut command, Duration::from_secs(5), &mut io::sink())
            .unwrap();
        assert_eq!(lines, ["one"]);
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("`sh -c echo one; sleep 600` did not finish"), "{error}");
    }

    #[test]
    fn runner_is_not_shown() {
        let mut command = Command::new("/bin/cargo");
        command.args([CONFIG, "x.y=1", "test", "--workspace"]).env("A", "b c");
        assert_eq!(command_line(&command), "A='b c' cargo test --workspace");
    }

    #[test]
    fn runner_is_an_array_of_the_configuration() {
        assert_eq!(
            runner_config("/a folder/xtask", Duration::from_secs(600)),
            r#"target.'cfg(all())'.runner=["/a folder/xtask", 'supervise', '600']"#
        );
    }
}
