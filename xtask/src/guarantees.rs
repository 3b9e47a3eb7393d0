use crate::progress::{Progress, root};
use crate::{Result, libtest};
use std::fs;

/// The documents that link guarantees to tests.
const DOCUMENTS: &[&str] = &["docs/guarantees.md", "docs/layers.md"];

/// The guarantees in the documents.
#[derive(Default)]
pub(crate) struct Promises {
    /// The linked tests, each with its document.
    tests: Vec<(String, String)>,
    /// The rows of guarantees without a test.
    open: Vec<String>,
}

impl Promises {
    pub(crate) fn read() -> Result<Self> {
        let mut promises = Self::default();
        for path in DOCUMENTS {
            promises.add(path, &fs::read_to_string(root().join(path))?);
        }
        Ok(promises)
    }

    fn add(&mut self, path: &str, document: &str) {
        let tests = linked(document).map(|test| (test.to_owned(), path.to_owned()));
        self.tests.extend(tests);
        let open = document.lines().filter_map(open).map(|row| format!("{path}: {row}"));
        self.open.extend(open);
    }

    /// Checks that each linked test ran and passed, according to the output of `cargo test`.
    pub(crate) fn check(&self, output: &[String]) -> Result {
        let ended: Vec<_> = output.iter().filter_map(|line| ended(line)).collect();
        let passed = |test: &str| {
            let mut results = ended.iter().filter(|(name, _)| *name == test).peekable();
            results.peek().is_some() && results.all(|(_, result)| *result == "ok")
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

/// Finds the labels of links to tests: names in backticks.
fn linked(document: &str) -> impl Iterator<Item = &str> {
    document.split("[`").skip(1).filter_map(|rest| rest.split_once("`](").map(|(name, _)| name))
}

/// Finds a row of a table with a last cell that begins with "open".
fn open(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let last = row.rsplit('|').next()?;
    last.trim_start().starts_with("open").then_some(row.trim())
}

/// Parses the name of a test without its modules, and its result.
fn ended(line: &str) -> Option<(&str, &str)> {
    let (name, result) = libtest::result(line)?;
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
test crates/campanile/src/lib.rs - reply::documented (line 7) ... ok
test result: ok. 5 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s
the program under test says: test spoken ... ok
test unfinished ...
";

    fn missing(tests: &[&str]) -> String {
        let tests = tests.iter().map(|&test| (test.to_owned(), "a.md".to_owned())).collect();
        let promises = Promises { tests, open: Vec::new() };
        let output: Vec<String> = OUTPUT.lines().map(str::to_owned).collect();
        promises.check(&output).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_test_that_passed_is_found_in_whatever_module() {
        assert_eq!(missing(&["a_lock_is_kept", "at_the_root", "it_panics"]), "");
    }

    #[test]
    fn a_test_that_did_not_pass_is_named_with_its_document() {
        for test in ["absent", "it_does_not_panic", "slow", "slower", "twice", "unfinished"] {
            let told = missing(&["a_lock_is_kept", test]);
            assert!(told.ends_with(&format!(": {test} (a.md)")), "{told}");
        }
    }

    #[test]
    fn part_of_a_name_and_what_is_no_test_do_not_count() {
        for name in ["lock_is_kept", "a_lock_is", "tests", "documented", "result: ok.", "spoken"] {
            assert_ne!(missing(&[name]), "", "{name}");
        }
    }

    #[test]
    fn links_with_names_in_backticks_are_tests_and_rows_that_end_in_open_are_open() {
        let document = "\
See [`one`](../a.rs) and [the protocol](protocol.md), `code`, not [`open`].

| what | shown by |
|---|---|
| it is open to all | [`two`](../b.rs)<br>[`three`](../c.rs) |
| a flood | open: not built yet |
";
        let mut promises = Promises::default();
        promises.add("a.md", document);
        let names: Vec<_> = promises.tests.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["one", "two", "three"]);
        assert_eq!(promises.open, ["a.md: a flood | open: not built yet"]);
    }
}
