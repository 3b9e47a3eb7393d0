//! The table that links each guarantee to its tests.

use crate::Result;
use crate::guarantees::{linked_tests, open_row};

/// Checks that each promise of the guarantees has one row of evidence, that each row has a
/// promise, and that each row names a test or is open. The guarantees name no test themselves.
pub(crate) fn check(guarantees: &str, evidence: &str) -> Result {
    let promises: Vec<&str> = promises(guarantees).collect();
    let rows: Vec<(&str, &str)> = evidence.lines().filter_map(evidence_row).collect();
    let mut errors = Vec::new();
    for (index, promise) in promises.iter().enumerate() {
        if promises[..index].contains(promise) {
            errors.push(format!("the anchor `{promise}` occurs twice"));
            continue;
        }
        let count = rows.iter().filter(|(row, _)| row == promise).count();
        if count != 1 {
            errors.push(format!("the promise `{promise}` has {count} rows of evidence"));
        }
    }
    for (row, line) in &rows {
        if !promises.contains(row) {
            errors.push(format!("the row `{row}` has no promise"));
        }
        if linked_tests(line).next().is_none() && open_row(line).is_none() {
            errors.push(format!("the row `{row}` has no test"));
        }
    }
    let named = linked_tests(guarantees);
    errors.extend(named.map(|test| format!("the guarantees name the test `{test}`")));
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("guarantees and evidence differ: {}", errors.join(", ")).into())
}

/// Finds the anchors of the promises.
fn promises(document: &str) -> impl Iterator<Item = &str> {
    document.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"').map(|(id, _)| id))
}

/// Parses a row that links to a promise: the promise's anchor, and the row.
fn evidence_row(line: &str) -> Option<(&str, &str)> {
    let (_, target) = line.strip_prefix("| [")?.split_once("](guarantees.md#")?;
    Some((target.split_once(')')?.0, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARANTEES: &str = "\
* <a id=\"one\"></a>The first promise.
* A limit.
  * <a id=\"two\"></a>The second promise. <a id=\"three\"></a>The third, by [design](design.md).
";

    const ONE: &str = "| [one](guarantees.md#one) | [`a`](../a.rs)<br>[`b`](../b.rs) |\n";
    const TWO: &str = "| [two](guarantees.md#two) | [`a`](../a.rs) |\n";
    const THREE: &str = "| [three](guarantees.md#three) | open: no test yet |\n";

    fn errors(guarantees: &str, rows: &[&str]) -> String {
        let evidence = format!("The [one](guarantees.md#one).\n|---|---|\n{}", rows.concat());
        check(guarantees, &evidence).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn promises_with_one_row_each_pass_in_any_order() {
        assert_eq!(errors(GUARANTEES, &[ONE, TWO, THREE]), "");
        assert_eq!(errors(GUARANTEES, &[THREE, ONE, TWO]), "");
    }

    #[test]
    fn promise_without_row_or_with_two_is_reported() {
        let error = errors(GUARANTEES, &[ONE, ONE, THREE]);
        assert!(error.contains("promise `one` has 2 rows"), "{error}");
        assert!(error.contains("promise `two` has 0 rows"), "{error}");
    }

    #[test]
    fn anchor_that_occurs_twice_is_reported() {
        let twice = format!("{GUARANTEES}* <a id=\"two\"></a>Another promise.\n");
        let error = errors(&twice, &[ONE, TWO, THREE]);
        assert!(error.ends_with(": the anchor `two` occurs twice"), "{error}");
    }

    #[test]
    fn row_without_promise_or_test_is_reported() {
        let row = "| [four](guarantees.md#four) | it is open |\n";
        let error = errors(GUARANTEES, &[ONE, TWO, THREE, row]);
        assert!(
            error.ends_with(": the row `four` has no promise, the row `four` has no test"),
            "{error}"
        );
    }

    #[test]
    fn test_named_in_guarantees_is_reported() {
        let named = format!("{GUARANTEES}See [`a`](../a.rs).\n");
        let error = errors(&named, &[ONE, TWO, THREE]);
        assert!(error.ends_with(": the guarantees name the test `a`"), "{error}");
    }
}
