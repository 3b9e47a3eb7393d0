//! Checks that the tests that the documents name exist and have passed.

use crate::progress::{Progress, root};
use crate::{Result, evidence, libtest};
use std::{fs, io};

/// The document that states the guarantees.
const GUARANTEES: &str = "docs/guarantees.md";

/// The document that links the guarantees to tests.
const EVIDENCE: &str = "docs/evidence.md";

/// The documents that link to tests.
const DOCUMENTS: &[&str] = &[EVIDENCE, "docs/layers.md"];

/// The tests and open rows in the documents.
#[derive(Default)]
pub(crate) struct Guarantees {
    /// The linked tests, each with its document.
    tests: Vec<(String, String)>,
    /// The rows of guarantees without a test.
    open: Vec<String>,
}

impl Guarantees {
    /// Reads the documents. Checks that the guarantees and their evidence belong together.
    pub(crate) fn read() -> Result<Self> {
        evidence::check(&read_document(GUARANTEES)?, &read_document(EVIDENCE)?)?;
        let mut guarantees = Self::default();
        for path in DOCUMENTS {
            guarantees.add(path, &read_document(path)?);
        }
        Ok(guarantees)
    }

    fn add(&mut self, path: &str, document: &str) {
        let tests = linked_tests(document).map(|test| (test.to_owned(), path.to_owned()));
        self.tests.extend(tests);
        let open = document.lines().filter_map(open_row).map(|row| format!("{path}: {row}"));
        self.open.extend(open);
    }

    /// Checks that each linked test ran and passed, according to the output of `cargo test`.
    pub(crate) fn check(&self, output: &[String]) -> Result {
        let results: Vec<_> = output.iter().filter_map(|line| test_result(line)).collect();
        let passed = |test: &str| {
            let mut matching = results.iter().filter(|(name, _)| *name == test).peekable();
            matching.peek().is_some() && matching.all(|(_, result)| *result == "ok")
        };
        let missing = self.tests.iter().filter(|(test, _)| !passed(test));
        let missing: Vec<String> = missing.map(|(test, path)| format!("{test} ({path})")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!("tests named in the documents did not pass: {}", missing.join(", ")).into())
    }

    /// Shows the number of linked tests and the guarantees without a test.
    pub(crate) fn show(&self, progress: &Progress) {
        progress
            .step(&format!("{} tests are named in the documents, and passed", self.tests.len()));
        for row in &self.open {
            progress.step(&format!("open: {row}"));
        }
    }
}

fn read_document(path: &str) -> io::Result<String> {
    fs::read_to_string(root().join(path))
}

/// Finds the labels of links to tests: names in backticks.
pub(crate) fn linked_tests(document: &str) -> impl Iterator<Item = &str> {
    document.split("[`").skip(1).filter_map(|rest| rest.split_once("`](").map(|(name, _)| name))
}

/// Finds a row of a table with a last cell that begins with "open".
pub(crate) fn open_row(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let last = row.rsplit('|').next()?;
    last.trim_start().starts_with("open").then_some(row.trim())
}

/// Parses the name of a test without its modules, and its result.
fn test_result(line: &str) -> Option<(&str, &str)> {
    let (name, result) = libtest::parse_result(line)?;
    Some((name.rsplit("::").next()?, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 9 tests
test keeper::tests::a_lock_is_kept ... ok
test at_the_root ... ok
test tests::it_panics - should panic ... ok
test tests::it_does_not_panic - should panic ... FAILED
test orders::slow ... ignored
test orders::slower ... ignored, takes a day
test one::twice ... ok
test other::twice ... ignored
test crates/library/campanile/src/lib.rs - reply::documented (line 7) ... ok
test result: ok. 5 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s
the program under test says: test spoken ... ok
test unfinished ...
";

    fn missing(tests: &[&str]) -> String {
        let tests = tests.iter().map(|&test| (test.to_owned(), "a.md".to_owned())).collect();
        let guarantees = Guarantees { tests, open: Vec::new() };
        let output: Vec<String> = OUTPUT.lines().map(str::to_owned).collect();
        guarantees.check(&output).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn passed_test_is_found_in_any_module() {
        assert_eq!(missing(&["a_lock_is_kept", "at_the_root", "it_panics"]), "");
    }

    #[test]
    fn unpassed_test_is_reported_with_its_document() {
        for test in ["absent", "it_does_not_panic", "slow", "slower", "twice", "unfinished"] {
            let error = missing(&["a_lock_is_kept", test]);
            assert!(error.ends_with(&format!(": {test} (a.md)")), "{error}");
        }
    }

    #[test]
    fn partial_names_and_other_lines_do_not_count() {
        for name in ["lock_is_kept", "a_lock_is", "tests", "documented", "result: ok.", "spoken"] {
            assert_ne!(missing(&[name]), "", "{name}");
        }
    }

    #[test]
    fn guarantees_of_this_project_have_evidence() {
        let guarantees = Guarantees::read().unwrap();
        assert!(guarantees.tests.len() > 100, "only {} tests", guarantees.tests.len());
    }

    #[test]
    fn backticked_links_are_tests_and_rows_ending_in_open_are_open() {
        let document = "\
See [`one`](../a.rs) and [the protocol](protocol.md), `code`, not [`open`].

| what | shown by |
|---|---|
| it is open to all | [`two`](../b.rs)<br>[`three`](../c.rs) |
| a flood | open: not built yet |
";
        let mut guarantees = Guarantees::default();
        guarantees.add("a.md", document);
        let names: Vec<_> = guarantees.tests.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["one", "two", "three"]);
        assert_eq!(guarantees.open, ["a.md: a flood | open: not built yet"]);
    }
}
