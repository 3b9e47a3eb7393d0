//! A second judge of histories.
//!
//! It was written from `docs/history-format.md` alone, without the first judge in `src/judge`, and
//! shares no code with it: it reads the lines by itself and has its own words for what it finds. It
//! must stay independent. Change it when the document changes, and not to match the first judge.
//! Where the two disagree, the document decides, and is made precise if it does not.
//!
//! It is as plain as possible: each function is a sentence of the document.

mod attempts;
mod causes;
mod commits;
mod effects;
mod entries;
mod line;
mod outputs;
mod read;
mod records;
mod runs;
mod terms;

use std::collections::BTreeSet;

use self::read::Place;
use self::terms::Terms;

/// What the second judge finds in a history.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Findings {
    /// The violations: rule and subject.
    pub(crate) violations: BTreeSet<(&'static str, String)>,
    /// The causes: key, cause, and the places where the earlier and the later run begin.
    pub(crate) causes: BTreeSet<(String, &'static str, Place, Place)>,
    /// The number of events.
    pub(crate) events: usize,
}

/// Judges a history from the names and the contents of its files.
pub(crate) fn judge(files: &[(&str, &str)]) -> Result<Findings, String> {
    let history = read::read(files)?;
    let terms = Terms::new(&history);
    let mut findings = Findings { events: history.events, ..Findings::default() };
    records::lost(&terms, &mut findings);
    records::no_effect(&terms, &mut findings);
    records::key(&terms, &mut findings);
    records::order(&terms, &mut findings);
    causes::unexplained(&terms, &mut findings);
    runs::overlap(&terms, &mut findings);
    runs::token(&terms, &mut findings);
    attempts::attempt_without_run(&terms, &mut findings);
    attempts::attempt_not_counted(&terms, &mut findings);
    commits::commit_past_unfinished(&terms, &mut findings);
    commits::commit_lowered(&terms, &mut findings);
    effects::effect(&terms, &mut findings);
    if history.transactions == "broker" {
        outputs::effect(&terms, &mut findings);
        outputs::output_missing(&terms, &mut findings);
        outputs::output_uncommitted(&terms, &mut findings);
        outputs::order(&terms, &mut findings);
    }
    entries::entry(&terms, &mut findings);
    Ok(findings)
}

impl Findings {
    fn violated(&mut self, rule: &'static str, subject: impl ToString) {
        self.violations.insert((rule, subject.to_string()));
    }
}
