//! The judge.

mod commits;
mod effects;
mod entries;
mod faults;
mod findings;
mod index;
mod indexer;
mod notes;
mod order;
mod outputs;
mod pair;
mod records;
mod runs;
mod spans;
mod times;

use self::findings::Findings;
use self::indexer::index_history;
use crate::{History, Verdict};

/// Decides whether a history is sound.
///
/// Takes time proportional to n log n, for n events, and to the number of violations times that of
/// faults. `docs/history-format.md` describes the rules.
pub fn judge(history: &History) -> Verdict {
    let index = index_history(history);
    let mut findings = Findings::new(&index);
    records::check(&index, &mut findings);
    runs::check(&index, &mut findings);
    order::check(&index, &mut findings);
    commits::check(&index, &mut findings);
    effects::check(&index, &mut findings);
    outputs::check(&index, &mut findings);
    entries::check(&index, &mut findings);
    findings.into_verdict()
}
