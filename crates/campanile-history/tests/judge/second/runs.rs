//! The rules for the runs of a key: `overlap` and `token`.

use super::Findings;
use super::terms::{Key, KeyRun, Terms, between};

pub(super) fn overlap(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (index, n) in key.runs.iter().enumerate() {
            let before = || key.runs[..index].iter().filter(|run| !run.began_late);
            // Of several that are over at the same time, or never, `max_by_key` returns the last.
            for p in
                [before().max_by_key(|run| run.over), before().next_back()].into_iter().flatten()
            {
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
        between(&key.unlocked, p, n)
            || terms.lock_may_have_expired(p, n)
                && (unrenewed.suspended > 0 || unrenewed.clock_stepped > 0)
    };
    p.run.token.is_none()
        || n.run.token.is_none()
        || terms.writes_lost(p, n)
        || terms.evicted(p, n)
        || terms.began_late(p, n)
        || !key.recorded(p, n.run.begin) && lock_lost()
}

pub(super) fn token(terms: &Terms<'_>, findings: &mut Findings) {
    for (name, key) in &terms.keys {
        for (p, n) in pairs(key) {
            let Some(p) = p else { continue };
            let rises = n.run.token > p.run.token;
            if !rises && !terms.rerun(p, n) && !terms.writes_lost(p, n) && !terms.evicted(p, n) {
                findings.violated("token", name);
            }
        }
    }
}

/// Returns each run `n` that has a token and did not begin late, with the run `p` before it that has
/// a token and did not begin late, if there is one.
pub(super) fn pairs<'k, 'h>(
    key: &'k Key<'h>,
) -> impl Iterator<Item = (Option<&'k KeyRun<'h>>, &'k KeyRun<'h>)> {
    let runs = key.runs.iter().filter(|run| run.run.token.is_some() && !run.began_late);
    let mut p = None;
    runs.map(move |n| (p.replace(n), n))
}
