//! The rule for effects in transactions: `effect`.

use super::Findings;
use super::terms::{Key, Terms, between};

pub(super) fn effect(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        if without_success(key) || visible_twice(terms, key) {
            findings.violated("effect", name);
        }
    }
}

/// Checks (a).
fn without_success(key: &Key<'_>) -> bool {
    let mut visible = key.runs.iter().filter(|run| !run.visible.is_empty());
    visible.any(|run| run.run.end.as_ref().is_none_or(|end| end.how != "ok"))
}

/// Checks (b) and (c).
fn visible_twice(terms: &Terms<'_>, key: &Key<'_>) -> bool {
    let visible = key.runs.iter().filter(|run| !run.visible.is_empty() && run.run.token.is_some());
    let visible: Vec<_> = visible.collect();
    let by_two = visible.windows(2).any(|pair| {
        let (p, n) = (pair[0], pair[1]);
        !between(&key.reopened, p, n) && !terms.evicted(p, n)
    });
    by_two || key.runs.iter().any(|run| run.visible.len() > 1)
}
