//! Reads the license expressions of packages.

use std::sync::LazyLock;

/// The licenses that are accepted: those of `deny.toml`. None of them requires more of a user than a notice.
static ALLOWED: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let config = include_str!("../../deny.toml");
    let list = config.split_once("\nallow = [\n").and_then(|(_, rest)| rest.split_once("\n]"));
    let (list, _) = list.expect("deny.toml lists the accepted licenses");
    list.lines().map(|line| line.trim().trim_matches(['"', ','])).collect()
});

/// Whether a package with this SPDX expression may be used. The `/` of old manifests is an `OR`; an
/// exception (`WITH`) only adds permissions.
pub(crate) fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    parse_or(&mut words) == Some(true) && words.is_empty()
}

/// Parses `a OR b`. An invalid expression is `None`.
fn parse_or(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = parse_and(words)?;
    while consume(words, "OR") {
        allowed |= parse_and(words)?;
    }
    Some(allowed)
}

/// Parses `a AND b`, which has the higher precedence.
fn parse_and(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = parse_license(words)?;
    while consume(words, "AND") {
        allowed &= parse_license(words)?;
    }
    Some(allowed)
}

/// Parses one license, with or without an exception, or an expression in parentheses.
fn parse_license(words: &mut &[&str]) -> Option<bool> {
    if consume(words, "(") {
        let allowed = parse_or(words)?;
        return consume(words, ")").then_some(allowed);
    }
    let name = next_word(words)?;
    if consume(words, "WITH") {
        next_word(words)?;
    }
    Some(ALLOWED.contains(&name))
}

fn next_word<'a>(words: &mut &[&'a str]) -> Option<&'a str> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    Some(first)
}

fn consume(words: &mut &[&str], word: &str) -> bool {
    let found = words.first() == Some(&word);
    if found {
        *words = &words[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn or_needs_one_accepted_license_and_and_needs_all() {
        for expression in [
            "MIT",
            "GPL-2.0 OR MIT",
            "MIT/GPL-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "GPL-2.0 AND ISC OR Zlib",
        ] {
            assert!(is_allowed(expression), "{expression}");
        }
        for expression in [
            "GPL-2.0",
            "",
            "MIT AND GPL-2.0",
            "(MIT OR ISC) AND GPL-2.0",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "MIT OR",
            "(MIT",
            "MIT)",
            "MIT ISC",
            "mit",
        ] {
            assert!(!is_allowed(expression), "{expression}");
        }
    }
}
