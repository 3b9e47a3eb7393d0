//! Verifies the outcome of a scenario.

use std::collections::BTreeMap;
use std::fmt;

use campanile::store::{Entry, State};

use crate::commits::Commit;
use crate::history::{History, Run, RunEnd};
use crate::store::Entries;

/// How far a broker's timestamp may precede its cause: timestamps are truncated to milliseconds.
const TIMESTAMP_TOLERANCE_MICROS: u64 = 2_000;

/// Why a key may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No key may run twice.
    None,
    /// The process was killed.
    Killed,
    /// The process was suspended for longer than its lock's time to live.
    Suspended,
    /// The run was dropped because the drain timeout had elapsed or the partition was lost.
    Dropped,
}

/// A killed process, and the entries as the kill left them.
pub(crate) struct Kill {
    pub(crate) pid: u32,
    pub(crate) at: u64,
    pub(crate) entries: Entries,
}

/// A process that was suspended.
pub(crate) struct Suspension {
    pub(crate) pid: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The observations of a scenario.
pub(crate) struct Observations {
    pub(crate) cause: Cause,
    pub(crate) kills: Vec<Kill>,
    pub(crate) suspensions: Vec<Suspension>,
    /// What was produced.
    pub(crate) records: usize,
    pub(crate) keys: usize,
    pub(crate) history: History,
    pub(crate) commits: Vec<Commit>,
    /// How far the broker's clock is ahead of ours, in microseconds.
    pub(crate) broker_clock_offset: u64,
    /// The entries at the end.
    pub(crate) entries: Entries,
}

#[derive(Default)]
pub(crate) struct Report {
    /// Keys that ran more than once, for the given cause.
    pub(crate) twice: usize,
    /// Keys among them with a run that had no effect, and keys among them with more than one
    /// effect.
    pub(crate) interrupted: usize,
    pub(crate) effects_twice: usize,
    pub(crate) violations: Vec<String>,
}

impl Report {
    pub(crate) fn evaluate(observations: &Observations) -> Self {
        let mut report = Self::default();
        let history = &observations.history;
        let answered: usize = history.answered.values().map(BTreeMap::len).sum();
        let (records, keys) = (observations.records, observations.keys);
        report.expect(answered == records, || format!("{answered} of {records} were answered"));
        let ran = history.runs.len();
        report.expect(ran == keys, || format!("{ran} of {keys} keys ran"));
        let mut by_record_key: BTreeMap<_, Vec<&Run>> = BTreeMap::new();
        for (key, runs) in &history.runs {
            report.check_key(observations, key, runs);
            for run in runs {
                by_record_key.entry((run.partition, &run.record_key)).or_default().push(run);
            }
        }
        for runs in by_record_key.values_mut() {
            runs.sort_by_key(|run| run.started);
            report.check_order(observations, runs);
        }
        report.check_commits(observations);
        report
    }

    /// Judges the runs of a key, given in the order of their tokens.
    fn check_key(&mut self, observations: &Observations, key: &str, runs: &[Run]) {
        let of_key = |what: &str| format!("{key} {what}: {runs:#?}");
        let effect = runs.iter().any(|run| run.effect.is_some());
        self.expect(effect, || of_key("never had its effect"));
        for (one, next) in runs.iter().zip(&runs[1..]) {
            self.expect(one.token < next.token, || of_key("has a token twice"));
            let allowed = observations.allows(key, one, next);
            self.expect(allowed, || of_key("ran twice without cause"));
        }
        self.twice += usize::from(runs.len() > 1);
        let effects = runs.iter().filter(|run| run.effect.is_some()).count();
        self.interrupted += usize::from(runs.len() > 1 && effects < runs.len());
        self.effects_twice += usize::from(effects > 1);
        let last = runs.last().expect("a key that ran");
        let entry = observations.entries.get(key);
        let found = entry.map(|entry| (entry.state(), entry.token().get()));
        let expected = Some((State::Completed, last.token));
        self.expect(found == expected, || {
            of_key(&format!("ended with {found:?}, expected {expected:?}"))
        });
    }

    /// Judges the runs of the records with one key in one partition, given in the order in which
    /// they started. Runs must not overlap, and each must be of a later record unless the previous
    /// run did not finish.
    fn check_order(&mut self, observations: &Observations, runs: &[&Run]) {
        for pair in runs.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            let kill = observations.kill_of(one).map(|kill| kill.at);
            let end = match observations.suspension_of(one) {
                // The process was suspended: others may continue in the meantime.
                Some(_) if !one.is_processed() => continue,
                // The process learned of its completion only later.
                Some(_) => one.effect,
                // The end of a shutdown may not wait for the answer.
                None => one.ended_at().or(kill).or(one.effect),
            };
            let is_disjoint = end.is_some_and(|end| end <= next.started);
            self.expect(is_disjoint, || format!("runs overlap: {pair:#?}"));
            let after = if one.is_processed() { one.offset + 1 } else { one.offset };
            self.expect(next.offset >= after, || format!("runs out of order: {pair:#?}"));
        }
    }

    /// Judges the commits: an offset is committed only when all records before it are finished, and
    /// no commit lowers an earlier one.
    fn check_commits(&mut self, observations: &Observations) {
        for (partition, answered) in &observations.history.answered {
            // The times at which all records up to each offset were finished, up to the first
            // missing record.
            let mut finished: Vec<u64> = Vec::new();
            for (index, (offset, at)) in answered.iter().enumerate() {
                if *offset != index as i64 {
                    break;
                }
                finished.push((*at).max(finished.last().copied().unwrap_or_default()));
            }
            let mut before = 0;
            let of_partition = |commit: &&Commit| commit.partition == *partition;
            for commit in observations.commits.iter().filter(of_partition) {
                let at = (commit.at * 1_000 + TIMESTAMP_TOLERANCE_MICROS)
                    .checked_sub(observations.broker_clock_offset);
                let last =
                    commit.offset.checked_sub(1).and_then(|last| finished.get(last as usize));
                self.expect(last.is_some_and(|last| Some(*last) <= at), || {
                    format!("{commit:?} is too far: finished at {last:?}, committed at {at:?}")
                });
                let is_monotonic = commit.offset >= before;
                self.expect(is_monotonic, || {
                    format!("{commit:?} lowers the committed offset {before}")
                });
                before = commit.offset;
            }
            let end = answered.len() as i64;
            self.expect(before == end, || {
                format!("{before} of {end} is committed in partition {partition}")
            });
        }
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }
}

impl Observations {
    /// Checks whether the cause explains that a key ran again.
    fn allows(&self, key: &str, one: &Run, next: &Run) -> bool {
        match self.cause {
            Cause::None => false,
            Cause::Killed => self.kill_of(one).is_some_and(|kill| {
                let entry = kill.entries.get(key).map(Entry::state);
                kill.at <= next.started && entry != Some(State::Completed)
            }),
            Cause::Suspended => {
                let suspension = self.suspension_of(one).filter(|_| !one.is_processed());
                suspension.is_some_and(|suspension| suspension.from <= next.started)
            }
            Cause::Dropped => matches!(one.end, RunEnd::Dropped(at) if at <= next.started),
        }
    }

    /// Finds the kill that hit the run.
    fn kill_of(&self, run: &Run) -> Option<&Kill> {
        self.kills.iter().find(|kill| kill.pid == run.pid && run.end == RunEnd::Unknown)
    }

    /// Finds the suspension during which the run was not over.
    fn suspension_of(&self, run: &Run) -> Option<&Suspension> {
        let during = |suspension: &&Suspension| {
            let is_running = run.ended_at().is_none_or(|end| end >= suspension.from);
            suspension.pid == run.pid && run.started <= suspension.to && is_running
        };
        self.suspensions.iter().find(during)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none may",
            Self::Killed => "at work in a process that was killed",
            Self::Suspended => "in progress in a suspended process",
            Self::Dropped => "released unfinished",
        })
    }
}
