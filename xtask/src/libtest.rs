//! The output of Rust's test harness.

/// Parses the result of one test: its full name, and `ok`, `FAILED` or `ignored`.
pub fn parse_result(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.trim_end().strip_prefix("test ")?.split_once(" ... ")?;
    Some((full_name(name), result))
}

/// Parses the tests that `--list` prints.
pub fn parse_list(lines: &[String]) -> Vec<String> {
    let names = lines.iter().filter_map(|line| line.strip_suffix(": test"));
    names.map(|name| full_name(name).to_owned()).collect()
}

/// Whether the harness finished. A test that calls `exit` ends the process, possibly with success,
/// and the remaining tests do not run.
pub fn has_finished(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("test result: "))
}

/// Strips a name's suffix: how the test is expected to end, or how far a doctest is built.
fn full_name(name: &str) -> &str {
    let suffixes = [" - should panic", " - compile fail", " - compile"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_without_their_suffixes() {
        let lines = ["a: test", "m::b - should panic: test", "c: bench", "", "2 tests"];
        assert_eq!(parse_list(&lines.map(str::to_owned)), ["a", "m::b"]);
        assert_eq!(parse_result("test m::b - should panic ... ok"), Some(("m::b", "ok")));
    }
}
