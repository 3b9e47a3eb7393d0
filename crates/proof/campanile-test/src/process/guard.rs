use super::children::kill_children;
use super::spawner;
use crate::{ServerError, eventually};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, prlimit};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How long [`Process::terminate`] waits before it kills the process.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a log is included in an error, in bytes.
const LOG_TAIL_BYTES: u64 = 4096;

/// A child process that is killed (SIGKILL) and reaped when this guard is dropped.
///
/// Its standard input is empty. Its standard output and standard error are appended to a log file.
///
/// On Linux with `setpriv`, the child is also killed when this process dies without running
/// destructors. Elsewhere, the child then keeps running.
#[derive(Debug)]
#[must_use = "the process is killed when this is dropped"]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    /// The position in the log at which this process's lines begin: a restarted server appends to
    /// the log.
    log_start: u64,
}

impl Process {
    /// Starts `command` and appends its output to the file `log`.
    ///
    /// The command's arguments, environment variables and folder are kept. Its standard streams are
    /// replaced, and an `env_clear` has no effect.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be opened or the program cannot be run.
    pub fn spawn(command: &Command, log: impl Into<PathBuf>) -> io::Result<Self> {
        let log = log.into();
        let output = OpenOptions::new().create(true).append(true).open(&log)?;
        let log_start = output.metadata()?.len();
        let mut command_with_signal = spawner::with_death_signal(command);
        command_with_signal.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        let name = Path::new(command.get_program())
            .file_name()
            .unwrap_or(command.get_program())
            .to_string_lossy()
            .into_owned();
        let child = spawner::spawn(command_with_signal)?;
        Ok(Self { child, name, log, log_start })
    }

    /// The process id, also after the process has exited.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL, as in a crash, and reaps it. Does no harm if the process has
    /// exited.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Like [`kill`](Self::kill), but also kills the process's children, as a crash of the machine
    /// does.
    pub(crate) fn kill_with_children(&mut self) -> io::Result<ExitStatus> {
        if self.exited()?.is_none() {
            self.pause()?;
            kill_children(self.native_pid());
        }
        self.kill()
    }

    /// Asks the process to exit (SIGTERM), and kills it if it still runs 10 s later.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the signal.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Ok(status);
        }
        kill_process(self.native_pid(), Signal::TERM)?;
        match self.wait(TERMINATE_TIMEOUT)? {
            Some(status) => Ok(status),
            None => self.kill(),
        }
    }

    /// Suspends the process (SIGSTOP): its sockets stay open, and nothing is answered.
    ///
    /// The process is stopped by the time this method returns.
    ///
    /// # Errors
    ///
    /// Fails if the process has exited.
    pub fn pause(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        // The signal only requests a stop, so wait for the stop. NOWAIT leaves the process to be
        // reaped by `Child`.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.native_pid()), stopped)?;
        Ok(())
    }

    /// Resumes a paused process (SIGCONT).
    ///
    /// # Errors
    ///
    /// Fails if the process has exited.
    pub fn resume(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Lets no file of the process grow any more.
    #[cfg(target_os = "linux")]
    pub(crate) fn limit_files(&mut self) -> io::Result<()> {
        let limit = Rlimit { current: Some(0), maximum: None };
        prlimit(Some(self.native_pid()), Resource::Fsize, limit)?;
        Ok(())
    }

    /// Returns the exit status if the process has exited.
    ///
    /// # Errors
    ///
    /// Fails if the operating system cannot report the status.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until the process has exited. `None` means that it still runs after `within`.
    ///
    /// # Errors
    ///
    /// Fails if the operating system cannot report the status.
    pub fn wait(&mut self, within: Duration) -> io::Result<Option<ExitStatus>> {
        eventually(within, || self.exited().transpose()).transpose()
    }

    /// Reads the last lines that this process has printed, at most 4 KiB.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read.
    pub fn log(&self) -> io::Result<String> {
        let mut file = File::open(&self.log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.log_start.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut tail = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    /// Waits until `ready` is true, and fails as soon as the process has exited.
    pub(crate) fn wait_until_ready(
        &mut self,
        port: u16,
        within: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), ServerError> {
        let found = eventually(within, || match self.exited() {
            Ok(None) => ready().then_some(Ok(())),
            Ok(Some(status)) => Some(Err(self.exit_error(status, Some(port)))),
            Err(error) => Some(Err(error.into())),
        });
        found.unwrap_or_else(|| Err(self.timeout_error(within)))
    }

    /// Waits until the process has exited successfully.
    pub(crate) fn wait_for_success(&mut self, within: Duration) -> Result<(), ServerError> {
        match self.wait(within)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.exit_error(status, None)),
            None => Err(self.timeout_error(within)),
        }
    }

    /// Creates the error for a process that exited too early, possibly because its port is in use.
    fn exit_error(&self, status: ExitStatus, port: Option<u16>) -> ServerError {
        let server = self.name.clone();
        match (self.log(), port) {
            (Err(error), _) => error.into(),
            (Ok(log), Some(port)) if log.contains("Address already in use") => {
                ServerError::PortTaken { server, port }
            }
            (Ok(log), _) => ServerError::Exited { server, status, log },
        }
    }

    /// Creates the error for a process that takes too long.
    fn timeout_error(&self, within: Duration) -> ServerError {
        let server = self.name.clone();
        self.log().map_or_else(ServerError::Io, |log| ServerError::NotReady { server, within, log })
    }

    /// Sends a signal unless the process was reaped, because its id may belong to another process
    /// by then.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match self.exited()? {
            None => Ok(kill_process(self.native_pid(), signal)?),
            Some(status) => Err(io::Error::other(format!("{} has exited ({status})", self.name))),
        }
    }

    fn native_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process is already gone.
        let _ = self.kill();
    }
}
