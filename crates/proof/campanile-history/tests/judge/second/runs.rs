//! The rules for the runs of a key: `overlap` and `token`.

use super::Findings;
use super::terms::{Key, KeyRun, Terms};

pub(super) fn overlap(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (index, n) in key.runs.iter().enumerate() {
            let Some(predecessor) = predecessor_with_token(key, index) else { continue };
            let before = key.runs[..index].iter();
            let before = before.filter(|run| run.run.token.is_some() && !run.began_late);
            // Of several that are over at the same time, or never, `max_by_key` returns the last.
            let over_last = before.max_by_key(|run| run.over);
            for p in [Some(predecessor), over_last].into_iter().flatten() {
                if p.over > n.run.begin && !may_overlap(terms, key, p, n) {
                    findings.violated("overlap", name);
                }
            }
        }
    }
}

fn may_overlap(terms: &Terms<'_>, key: &Key<'_>, p: &KeyRun<'_>, n: &KeyRun<'_>) -> bool {
    let lock_lost = || {
        let unrenewed = terms.unrenewed(p, n);
        terms.unlocked(key, p, n)
            || terms.lock_may_have_expired(p, n)
                && (unrenewed.suspended > 0 || unrenewed.clock_stepped > 0)
    };
    terms.writes_lost(key, p, n)
        || terms.evicted(key, p, n)
        || terms.began_late(key, p, n)
        || !terms.recorded(key, p, n.run.begin) && lock_lost()
}

pub(super) fn token(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let Some(p) = p else { continue };
            if n.run.token <= p.run.token
                && !terms.rerun(p, n)
                && !terms.writes_lost(key, p, n)
                && !terms.evicted(key, p, n)
            {
                findings.violated("token", name);
            }
        }
    }
}

/// Returns each run `n` that has a token and did not begin late, with its predecessor `p`, if there
/// is one with a token.
pub(super) fn pairs<'k, 'h>(
    key: &'k Key<'h>,
) -> impl Iterator<Item = (Option<&'k KeyRun<'h>>, &'k KeyRun<'h>)> {
    let runs = key.runs.iter().enumerate();
    let runs = runs.filter(|(_, run)| run.run.token.is_some() && !run.began_late);
    runs.map(|(index, n)| (predecessor_with_token(key, index), n))
}

/// Returns the predecessor of a run with a token, if it has a token as well.
fn predecessor_with_token<'k, 'h>(key: &'k Key<'h>, n: usize) -> Option<&'k KeyRun<'h>> {
    let predecessor = key.predecessor(n).filter(|p| p.run.token.is_some());
    predecessor.filter(|_| key.runs[n].run.token.is_some())
}
