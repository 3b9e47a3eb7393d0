//! Runs programs that might hang.

use crate::libtest;
use crate::progress::now;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for remaining output after the program has exited and its group was killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for a test binary to list its tests.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code of a test binary with a failed test.
const EXIT_FAILED: u8 = 101;

/// The exit code of `timeout` after a timeout.
const EXIT_TIMED_OUT: u8 = 124;

/// The exit status of a supervised program, and the lines of its standard output.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None` if the program was killed at its deadline.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) lines: Vec<String>,
}

enum Event {
    Line(Vec<u8>),
    Exited(io::Result<ExitStatus>),
}

/// Runs `command` until it exits or `deadline` passes, then kills the rest of its process group: a
/// server that a test left running does not outlive the test and cannot keep our output open.
///
/// Copies each line of the program's standard output to `output` as it arrives. The standard input
/// is empty.
///
/// # Errors
///
/// Fails if the program cannot be started or `output` cannot be written.
pub(crate) fn supervise(
    command: &mut Command,
    deadline: Duration,
    output: &mut impl Write,
) -> io::Result<Finished> {
    let end = now() + deadline;
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
        // The leader kills itself, too.
        let _ = self.0.wait();
    }
}

/// Runs a test binary or an example for cargo, which has set its folder and environment. Returns
/// the exit code.
///
/// If the deadline passes, prints the tests that were running.
pub(crate) fn run(
    program: &mut Command,
    deadline: Duration,
    name: &str,
    output: &mut impl Write,
) -> io::Result<u8> {
    let finished = supervise(program, deadline, output)?;
    let lines = &finished.lines;
    let Some(status) = finished.status else {
        eprintln!("\nerror: {}", describe_timeout(program, deadline, name, lines));
        return Ok(EXIT_TIMED_OUT);
    };
    if status.success() && libtest::has_started(lines) && !libtest::has_finished(lines) {
        eprintln!("\nerror: {name} exited before all of its tests had run");
        return Ok(EXIT_FAILED);
    }
    let Some(code) = status.code() else {
        eprintln!("\nerror: {name}: {status}");
        return Ok(EXIT_FAILED);
    };
    Ok(code.try_into().unwrap_or(EXIT_FAILED))
}

/// Describes a program that was killed at its deadline, with its unfinished tests if it is a test
/// binary.
pub(crate) fn describe_timeout(
    program: &Command,
    deadline: Duration,
    name: &str,
    lines: &[String],
) -> String {
    let mut text = format!(
        "{name} did not finish within {} s and was killed, with its process group",
        deadline.as_secs()
    );
    let names = if libtest::has_started(lines) { list_tests(program) } else { Ok(Vec::new()) };
    if let Ok(names) = names
        && !names.is_empty()
    {
        text.push_str(&libtest::describe_unfinished(&names, lines, libtest::thread_count(program)));
    }
    text
}

/// Lists the tests that a test binary would run with these arguments, in the order in which they
/// are started.
fn list_tests(program: &Command) -> io::Result<Vec<String>> {
    let mut command = Command::new(program.get_program());
    command.args(program.get_args()).arg("--list").stderr(Stdio::null());
    if let Some(folder) = program.get_current_dir() {
        command.current_dir(folder);
    }
    let finished = supervise(&mut command, LIST_TIMEOUT, &mut io::sink())?;
    Ok(libtest::parse_list(&finished.lines))
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

    fn exit_code(script: &str, deadline: Duration) -> u8 {
        run(&mut sh(script), deadline, "fake", &mut io::sink()).unwrap()
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
        assert_eq!(finished.status.unwrap().code(), Some(101));
        assert_eq!(finished.lines, ["test a ... FAILED"]);
        assert_eq!(exit_code("exit 3", LONG), 3);
        assert_eq!(exit_code("kill -ABRT $$", LONG), 101);
    }

    #[test]
    fn test_binary_that_exits_before_its_end_fails() {
        let script = "echo running 2 tests; echo test a ... ok";
        assert_eq!(exit_code(script, LONG), 101);
        let complete = format!("{script}; echo test b ... ok; echo test result: ok. 2 passed");
        assert_eq!(exit_code(&complete, LONG), 0);
        assert_eq!(exit_code("echo no tests", LONG), 0);
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

    #[test]
    fn tests_that_hang_are_named() {
        // A test binary with four tests, of which the second hangs.
        let script =
            "case \"$*\" in *--list*) printf 'a::one: test\na::two: test\nb::three: test\n\
                      c::four: test\n\n4 tests, 0 benchmarks\n'; exit;; esac
                      printf 'running 4 tests\ntest a::one ... ok\ntest b::three ... ok\n'
                      sleep 600";
        let mut program = sh(script);
        program.args(["sh", "--test-threads", "1"]);
        let finished = supervise(&mut program, SHORT, &mut io::sink()).unwrap();
        assert!(finished.status.is_none());
        let text = describe_timeout(&program, SHORT, "deps/fake", &finished.lines);
        assert_eq!(
            text,
            "deps/fake did not finish within 5 s and was killed, with its process group\n\
             tests still running:\n    a::two\nnot started yet: 1"
        );
    }

    #[test]
    fn example_that_hangs_is_not_asked_for_tests() {
        let finished = supervise(&mut sh("echo hi; sleep 600"), SHORT, &mut io::sink()).unwrap();
        let text = describe_timeout(&sh("exit 1"), LONG, "quickstart", &finished.lines);
        assert!(text.ends_with("with its process group"), "{text}");
        assert_eq!(exit_code("sleep 600", SHORT), 124);
    }
}
