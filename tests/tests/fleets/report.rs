//! Judges what the processes did.

use campanile::store::{Entry, State, StoreKey};
use campanile::{IdempotencyKey, key::Namespace};

use crate::fleet::Entries;
use crate::history::{History, Run, RunEnd};

/// A killed process, and the entries as the kill left them.
pub(crate) struct Kill {
    pub(crate) pid: u32,
    pub(crate) entries: Entries,
}

pub(crate) struct Observations<'a> {
    /// The number of keys that were produced.
    pub(crate) keys: usize,
    /// The number of keys that a process of before does not find settled at the end.
    pub(crate) unreadable_before: usize,
    pub(crate) history: &'a History,
    /// The entries at the end.
    pub(crate) entries: &'a Entries,
    pub(crate) kills: &'a [Kill],
}

#[derive(Default)]
pub(crate) struct Report {
    /// Keys that never ran, or that have no entry.
    pub(crate) lost: usize,
    /// Keys with more than one effect, because their process was killed before it was recorded.
    pub(crate) twice: usize,
    pub(crate) violations: Vec<String>,
}

/// The namespace of the workers.
pub(crate) fn namespace() -> Namespace {
    Namespace::try_from("payments").unwrap()
}

pub(crate) fn id(number: usize) -> String {
    format!("p-{number}")
}

pub(crate) fn store_key(number: usize) -> StoreKey {
    StoreKey::new(namespace(), &IdempotencyKey::new(id(number)).unwrap())
}

/// Whether all attempts of the payment fail.
pub(crate) fn is_poison(number: usize) -> bool {
    number % 50 == 7
}

impl Report {
    pub(crate) fn evaluate(observations: &Observations<'_>) -> Self {
        let mut report = Self::default();
        let (entries, unreadable_before) = (observations.entries, observations.unreadable_before);
        for (what, found, expected) in [
            ("entries", entries.by_digest.len(), observations.keys),
            ("unreadable entries", entries.unreadable, 0),
            ("entries that processes of before cannot read", unreadable_before, 0),
        ] {
            report.expect(found == expected, || format!("{what}: {found}, not {expected}"));
        }
        for number in 0..observations.keys {
            let runs = observations.history.runs.get(&id(number));
            let entry = entries.by_digest.get(store_key(number).digest());
            match (runs, entry) {
                (Some(runs), Some(entry)) => {
                    report.check_runs(observations, number, runs);
                    report.check_entry(number, runs, entry);
                }
                _ => report.lost += 1,
            }
        }
        let lost = report.lost;
        report.expect(lost == 0, || format!("{lost} keys are lost"));
        report
    }

    /// Judges the runs of a key, given in the order of their tokens.
    fn check_runs(&mut self, observations: &Observations<'_>, number: usize, runs: &[Run]) {
        let of_key = |what: &str| format!("{} {what}: {runs:#?}", id(number));
        let effects = runs.iter().filter(|run| run.effect.is_some()).count();
        let has_effect = effects > 0;
        self.expect(has_effect != is_poison(number), || of_key("has a wrong number of effects"));
        self.twice += usize::from(effects > 1);
        for (one, next) in runs.iter().zip(&runs[1..]) {
            self.expect(one.token < next.token, || of_key("has a token twice"));
            let may_run_again = match one.end {
                RunEnd::Processed(_) => false,
                // The attempt failed.
                RunEnd::Dropped(at) => one.effect.is_none() && at <= next.started,
                RunEnd::Unknown => observations.is_killed(number, one),
            };
            self.expect(may_run_again, || of_key("ran again without cause"));
        }
    }

    fn check_entry(&mut self, number: usize, runs: &[Run], entry: &Entry) {
        let is_sound = if is_poison(number) {
            // The token may be that of a later lock for giving up.
            entry.state() == State::Failed && entry.attempt() == 8 && entry.error().is_some()
        } else {
            let last = runs.last().expect("a key that ran");
            entry.state() == State::Completed && entry.token().get() == last.token
        };
        self.expect(is_sound, || format!("{}: {entry:?} after {runs:#?}", id(number)));
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }
}

impl Observations<'_> {
    /// Whether a kill hit this run before it was recorded.
    fn is_killed(&self, number: usize, run: &Run) -> bool {
        self.kills.iter().filter(|kill| kill.pid == run.pid).any(|kill| {
            let entry = kill.entries.by_digest.get(store_key(number).digest());
            entry.map(Entry::state) != Some(State::Completed)
        })
    }
}
