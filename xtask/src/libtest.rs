//! The output of Rust's test harness.

use std::collections::HashSet;
use std::env;
use std::process::Command;
use std::thread;

/// Parses the result of one test: its full name, and `ok`, `FAILED` or `ignored`.
pub(crate) fn parse_result(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.trim_end().strip_prefix("test ")?.split_once(" ... ")?;
    Some((full_name(name), result))
}

/// Whether these lines are the output of a test binary.
pub(crate) fn has_started(lines: &[String]) -> bool {
    lines.iter().any(|line| {
        let count = line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"));
        count.is_some_and(|(count, _)| count.parse::<u64>().is_ok())
    })
}

/// Whether the harness finished. A test that calls `exit` ends the process, possibly with success,
/// and the remaining tests do not run.
pub(crate) fn has_finished(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("test result: "))
}

/// Parses the tests that `--list` prints, in the order in which they are started.
pub(crate) fn parse_list(lines: &[String]) -> Vec<String> {
    let names = lines.iter().filter_map(|line| line.strip_suffix(": test"));
    names.map(|name| full_name(name).to_owned()).collect()
}

/// The number of tests that run concurrently.
pub(crate) fn thread_count(program: &Command) -> usize {
    let mut args = program.get_args().map(|arg| arg.to_string_lossy());
    let mut argument = None;
    while let Some(arg) = args.next() {
        if arg == "--test-threads" {
            argument = args.next().map(|count| count.into_owned());
        } else if let Some(count) = arg.strip_prefix("--test-threads=") {
            argument = Some(count.to_owned());
        }
    }
    argument
        .or_else(|| env::var("RUST_TEST_THREADS").ok())
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Describes the tests that are listed and have no result.
///
/// The harness prints the line of a test when the test ends, so the output alone does not show
/// which tests are running. But tests are started in the order of the list, `threads` at a time, so
/// the running tests are the first without a result.
pub(crate) fn describe_unfinished(names: &[String], lines: &[String], threads: usize) -> String {
    let finished: HashSet<&str> =
        lines.iter().filter_map(|line| Some(parse_result(line)?.0)).collect();
    let unfinished: Vec<&String> =
        names.iter().filter(|name| !finished.contains(name.as_str())).collect();
    if unfinished.is_empty() {
        return "\nevery test that it lists has finished".to_owned();
    }
    let (running, waiting) = unfinished.split_at(threads.min(unfinished.len()));
    let mut text = "\ntests still running:".to_owned();
    for name in running {
        text.push_str("\n    ");
        text.push_str(name);
    }
    if !waiting.is_empty() {
        text.push_str(&format!("\nnot started yet: {}", waiting.len()));
    }
    text
}

/// Strips a name's suffix: how the test is expected to end, or how far a doctest is built.
fn full_name(name: &str) -> &str {
    let suffixes = [" - should panic", " - compile fail", " - compile"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn running_tests_are_the_first_of_the_list_without_a_result() {
        let names = parse_list(&lines(
            "a: test\nb: test\nc - should panic: test\nd: test\ne: test\nf: bench\n\n5 tests",
        ));
        assert_eq!(names, ["a", "b", "c", "d", "e"]);
        let output = lines("running 5 tests\ntest c - should panic ... ok\ntest a ... ignored");
        assert_eq!(
            describe_unfinished(&names, &output, 2),
            "\ntests still running:\n    b\n    d\nnot started yet: 1"
        );
        assert_eq!(
            describe_unfinished(&names, &output, 8),
            "\ntests still running:\n    b\n    d\n    e"
        );
        assert!(describe_unfinished(&names[..1], &output, 2).contains("every test"));
    }

    #[test]
    fn test_binary_is_recognized_by_its_output() {
        assert!(has_started(&lines("\nrunning 12 tests\n")));
        assert!(has_started(&lines("running 1 test")));
        assert!(!has_started(&lines("running the tests\nrunning 3 servers")));
    }

    #[test]
    fn harness_has_finished_with_its_summary() {
        assert!(has_finished(&lines("test a ... ok\n\ntest result: ok. 1 passed")));
        assert!(!has_finished(&lines("running 2 tests\ntest a ... ok")));
    }

    #[test]
    fn thread_count_is_parsed_from_arguments() {
        let threads = |args: &[&str]| thread_count(Command::new("x").args(args));
        assert_eq!(threads(&["--show-output", "--test-threads", "3"]), 3);
        assert_eq!(threads(&["--test-threads=5"]), 5);
        assert!(threads(&[]) > 0);
    }
}
