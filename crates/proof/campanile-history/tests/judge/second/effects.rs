//! The rule for effects in transactions: `effect`.

use std::cmp::max;
use std::collections::HashMap;

use super::Findings;
use super::read::{History, Run, Time};
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
        !between(&key.reopened, p, n) && !terms.evicted(key, p, n)
    });
    by_two || key.runs.iter().any(|run| run.visible.len() > 1)
}

/// Returns the times of each `visible` of each run, with `settings.transactions`.
pub(super) fn visible(history: &History) -> Vec<Vec<Time>> {
    let mut times: HashMap<_, Vec<Time>> = HashMap::new();
    for visible in history.visible.iter().filter(|_| history.transactions == "store") {
        times.entry((&visible.process, visible.run)).or_default().push(visible.at);
    }
    let runs = history.runs.iter();
    runs.map(|run| times.remove(&(&run.process, run.number)).unwrap_or_default()).collect()
}

/// Returns for each run whether its `end` with `ok` is no success.
pub(super) fn no_success(history: &History, visible: &[Vec<Time>]) -> Vec<bool> {
    let lost = history.faults.iter().filter(|fault| fault.fault == "store_lost_writes");
    let last_lost = lost.map(|lost| max(lost.at, lost.until.unwrap_or(history.last))).max();
    let may_be_lost = |run: &Run| last_lost.is_some_and(|last| run.begin <= last);
    let runs = history.runs.iter().zip(visible);
    runs.map(|(run, times)| {
        history.transactions == "store" && times.is_empty() && !may_be_lost(run)
    })
    .collect()
}
