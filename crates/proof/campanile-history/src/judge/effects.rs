//! The rule of effects in transactions: each key has at most one.

use super::findings::Findings;
use super::index::{Index, Key};
use super::pair::Pair;
use crate::{How, Rule};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings<'_>) {
    for key in &index.keys {
        check_key(index, findings, key);
    }
}

fn check_key(index: &Index<'_>, findings: &mut Findings<'_>, key: &Key<'_>) {
    let mut previous = None;
    let runs = key.runs.iter().map(|&run| &index.runs[run]);
    for run in runs.filter(|run| !run.visible.is_empty()) {
        if run.end.is_none_or(|end| end.how != How::Ok) {
            let text = || format!("{} has the effect of a handler without success", key.name);
            findings.violation(Rule::Effect, &*key.name, text, run.events());
        }
        if run.visible.len() > 1 {
            let text = || format!("{} has an effect twice, by one run", key.name);
            findings.violation(Rule::Effect, &*key.name, text, run.events());
        }
        if run.token.is_none() {
            continue;
        }
        // A store that loses an entry also loses the effect, which is no excuse therefore.
        if let Some(first) = previous.replace(run)
            && let pair = Pair::new(index, first, run)
            && !pair.is_reopened
            && !pair.evicted
        {
            let text = || format!("{} has an effect twice, by two runs", key.name);
            findings.violation(Rule::Effect, &*key.name, text, first.events().chain(run.events()));
        }
    }
}
