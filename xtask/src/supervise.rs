//! Runs programs that might hang.

use crate::Result;
use crate::progress::now;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for remaining output after the program has exited and its group was killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The exit status of a supervised program, and the lines of its standard output.
#[derive(Debug)]
pub struct Finished {
    /// `None` if the program was killed at its time limit.
    pub status: Option<ExitStatus>,
    /// The lines of its standard output.
    pub lines: Vec<String>,
}

impl Finished {
    /// Whether the program ended in time and with success.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the lines of a program that ended in time and with success.
    ///
    /// # Errors
    ///
    /// Fails with this name of the program, and how it ended.
    pub fn check(self, name: &str) -> Result<Vec<String>> {
        match self.status {
            Some(status) if status.success() => Ok(self.lines),
            Some(status) => Err(format!("{name}: {status}").into()),
            None => Err(format!("{name} did not end in time and was killed").into()),
        }
    }
}

enum Event {
    Line(Vec<u8>),
    Exited(io::Result<ExitStatus>),
}

/// Runs `command` until it exits or `timeout` passes, then kills the rest of its process group: a
/// server that a test left running does not outlive the test and cannot keep our output open.
///
/// Copies each line of the program's standard output to `output` as it arrives. The standard input
/// is empty.
///
/// # Errors
///
/// Fails if the program cannot be started or `output` cannot be written.
pub fn supervise(
    command: &mut Command,
    timeout: Duration,
    output: &mut impl Write,
) -> io::Result<Finished> {
    let end = now() + timeout;
    let group = Group::start()?;
    let child =
        command.process_group(group.id()).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let events = forward_events(child);
    let mut lines = Vec::new();
    let mut status = next_exit(&events, end, &mut lines, output)?;
    let is_timed_out = status.is_none();
    drop(group);
    // Both threads end now, unless a process has left the group and keeps the output open.
    let drain_deadline = now() + DRAIN_TIMEOUT;
    while let Some(exited) = next_exit(&events, drain_deadline, &mut lines, output)? {
        status = Some(exited);
    }
    Ok(Finished { status: status.filter(|_| !is_timed_out), lines })
}

/// Sends the lines of the child's output, and its exit status, from one thread each.
fn forward_events(mut child: Child) -> Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let exits = sender.clone();
    // Sending fails once `supervise` has returned.
    thread::spawn(move || {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(Event::Line(std::mem::take(&mut line))).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let _ = exits.send(Event::Exited(child.wait()));
    });
    events
}

/// Copies lines until the child exits. Returns `None` at `end`, or when no more events can arrive.
fn next_exit(
    events: &Receiver<Event>,
    end: Instant,
    lines: &mut Vec<String>,
    output: &mut impl Write,
) -> io::Result<Option<ExitStatus>> {
    while let Ok(event) = events.recv_timeout(end.saturating_duration_since(now())) {
        match event {
            Event::Exited(status) => return status.map(Some),
            Event::Line(line) => {
                output.write_all(&line)?;
                output.flush()?;
                lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        }
    }
    Ok(None)
}

/// A process group that is killed when this value is dropped or this process dies, even by Ctrl-C
/// or SIGKILL: the group's leader waits for the end of a pipe that only this process holds open.
struct Group(Child);

impl Group {
    fn start() -> io::Result<Self> {
        let leader = Command::new("sh")
            .args(["-c", "read -r _; kill -KILL 0"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(leader))
    }

    fn id(&self) -> i32 {
        self.0.id().try_into().expect("a process id is a positive i32")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The leader also kills itself.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_secs(5);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn supervised(script: &str, deadline: Duration) -> (Finished, Vec<u8>) {
        let mut output = Vec::new();
        let finished = supervise(&mut sh(script), deadline, &mut output).unwrap();
        (finished, output)
    }

    /// Waits until no process has this id. A zombie counts as no process.
    fn is_gone(pid: &str) -> bool {
        let end = now() + Duration::from_secs(10);
        while now() < end {
            let stat = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
            if stat.map_or(true, |stat| stat.contains(") Z ")) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    #[test]
    fn output_is_copied_as_it_is_and_kept_by_line() {
        let (finished, output) = supervised(r"printf 'one\r\n\377two\n\nlast'", LONG);
        assert_eq!(finished.lines, ["one", "\u{fffd}two", "", "last"]);
        assert_eq!(output, b"one\r\n\xfftwo\n\nlast");
        assert!(finished.status.unwrap().success());
    }

    #[test]
    fn failing_program_keeps_its_exit_code() {
        let (finished, _) = supervised("echo test a ... FAILED; exit 101", LONG);
        assert_eq!(finished.lines, ["test a ... FAILED"]);
        let error = finished.check("a").unwrap_err().to_string();
        assert_eq!(error, "a: exit status: 101");
    }

    #[test]
    fn missing_program_is_an_error() {
        let mut missing = Command::new("/no/such/program");
        let error = supervise(&mut missing, LONG, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn hanging_program_is_killed_with_its_children() {
        let start = now();
        let (finished, _) = supervised("sleep 600 & echo $!; wait", SHORT);
        assert!(finished.status.is_none());
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(is_gone(&finished.lines[0]));
    }

    #[test]
    fn program_that_closes_its_output_and_hangs_is_killed() {
        let (finished, _) = supervised("echo $$; exec >&-; sleep 600", SHORT);
        assert!(finished.status.is_none());
        assert!(is_gone(&finished.lines[0]));
    }

    #[test]
    fn child_left_behind_is_killed_when_its_parent_exits() {
        // The child also holds the output, which would otherwise never end.
        let (finished, _) = supervised("sleep 600 & echo $!", LONG);
        assert!(finished.status.unwrap().success());
        assert!(is_gone(&finished.lines[0]));
    }

    #[test]
    fn group_is_killed_when_its_owner_dies() {
        let mut group = Group::start().unwrap();
        let mut child = sh("sleep 600").process_group(group.id()).spawn().unwrap();
        // The kernel closes the pipe of a process that dies.
        drop(group.0.stdin.take());
        assert!(!child.wait().unwrap().success());
    }
}
