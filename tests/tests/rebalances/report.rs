//! Verifies the outcome of a scene.

use std::collections::BTreeMap;
use std::fmt;

use campanile::store::{Entry, State};

use crate::commits::Commit;
use crate::history::{History, Over, Run};
use crate::store::Entries;

/// How far a broker's timestamp may precede its cause: timestamps are truncated to milliseconds.
const CUT: u64 = 2_000;

/// Why a key may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No key may run twice.
    None,
    /// The process was killed.
    Killed,
    /// The process was suspended for longer than its lock's time to live.
    Stopped,
    /// The run was dropped because the drain timeout had elapsed or the partition was lost.
    LetGo,
}

/// A killed process, and the entries as the kill left them.
pub(crate) struct Kill {
    pub(crate) pid: u32,
    pub(crate) at: u64,
    pub(crate) entries: Entries,
}

/// A process that was suspended.
pub(crate) struct Stop {
    pub(crate) pid: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The observations of a scene.
pub(crate) struct Evidence {
    pub(crate) cause: Cause,
    pub(crate) kills: Vec<Kill>,
    pub(crate) stops: Vec<Stop>,
    /// What was produced.
    pub(crate) records: usize,
    pub(crate) keys: usize,
    pub(crate) history: History,
    pub(crate) commits: Vec<Commit>,
    /// How far the broker's clock is ahead of ours, in microseconds.
    pub(crate) ahead: u64,
    /// The entries at the end.
    pub(crate) entries: Entries,
}

#[derive(Default)]
pub(crate) struct Verdict {
    /// Keys that ran more than once, for the given cause.
    pub(crate) twice: usize,
    /// Keys among them with a run that had no effect, and keys among them with more than one
    /// effect.
    pub(crate) interrupted: usize,
    pub(crate) effects_twice: usize,
    pub(crate) violations: Vec<String>,
}

impl Verdict {
    pub(crate) fn of(evidence: &Evidence) -> Self {
        let mut verdict = Self::default();
        let history = &evidence.history;
        let answered: usize = history.answered.values().map(BTreeMap::len).sum();
        let (records, keys) = (evidence.records, evidence.keys);
        verdict.expect(answered == records, || format!("{answered} of {records} were answered"));
        let ran = history.runs.len();
        verdict.expect(ran == keys, || format!("{ran} of {keys} keys ran"));
        let mut lines: BTreeMap<_, Vec<&Run>> = BTreeMap::new();
        for (key, runs) in &history.runs {
            verdict.judge(evidence, key, runs);
            for run in runs {
                lines.entry((run.partition, &run.record_key)).or_default().push(run);
            }
        }
        for line in lines.values_mut() {
            line.sort_by_key(|run| run.begun);
            verdict.judge_order(evidence, line);
        }
        verdict.judge_commits(evidence);
        verdict
    }

    /// Judges the runs of a key, given in the order of their tokens.
    fn judge(&mut self, evidence: &Evidence, key: &str, runs: &[Run]) {
        let of_key = |what: &str| format!("{key} {what}: {runs:#?}");
        let effect = runs.iter().any(|run| run.effect.is_some());
        self.expect(effect, || of_key("never had its effect"));
        for (one, next) in runs.iter().zip(&runs[1..]) {
            self.expect(one.token < next.token, || of_key("has a token twice"));
            let allowed = evidence.allows(key, one, next);
            self.expect(allowed, || of_key("ran twice without cause"));
        }
        self.twice += usize::from(runs.len() > 1);
        let effects = runs.iter().filter(|run| run.effect.is_some()).count();
        self.interrupted += usize::from(runs.len() > 1 && effects < runs.len());
        self.effects_twice += usize::from(effects > 1);
        let last = runs.last().expect("a key that ran");
        let entry = evidence.entries.get(key);
        let found = entry.map(|entry| (entry.state(), entry.token().get()));
        let expected = Some((State::Completed, last.token));
        self.expect(found == expected, || {
            of_key(&format!("ended with {found:?}, expected {expected:?}"))
        });
    }

    /// Judges the runs of the records with one key in one partition, given in the order in which
    /// they started. Runs must not overlap, and each must be of a later record unless the previous
    /// run did not finish.
    fn judge_order(&mut self, evidence: &Evidence, runs: &[&Run]) {
        for pair in runs.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            let kill = evidence.kill_of(one).map(|kill| kill.at);
            let over = match evidence.stop_of(one) {
                // The process was suspended: others may continue in the meantime.
                Some(_) if !one.is_processed() => continue,
                // The process learned of its completion only later.
                Some(_) => one.effect,
                // The end of a shutdown may not wait for the answer.
                None => one.over().or(kill).or(one.effect),
            };
            let apart = over.is_some_and(|over| over <= next.begun);
            self.expect(apart, || format!("runs overlap: {pair:#?}"));
            let after = if one.is_processed() { one.offset + 1 } else { one.offset };
            self.expect(next.offset >= after, || format!("runs out of order: {pair:#?}"));
        }
    }

    /// Judges the commits: an offset is committed only when all records before it are finished, and
    /// no commit lowers an earlier one.
    fn judge_commits(&mut self, evidence: &Evidence) {
        for (partition, answered) in &evidence.history.answered {
            // The times at which all records up to each offset were finished, up to the first
            // missing record.
            let mut finished: Vec<u64> = Vec::new();
            for (place, (offset, at)) in answered.iter().enumerate() {
                if *offset != place as i64 {
                    break;
                }
                finished.push((*at).max(finished.last().copied().unwrap_or_default()));
            }
            let mut before = 0;
            let of_partition = |commit: &&Commit| commit.partition == *partition;
            for commit in evidence.commits.iter().filter(of_partition) {
                let at = (commit.at * 1_000 + CUT).checked_sub(evidence.ahead);
                let last =
                    commit.offset.checked_sub(1).and_then(|last| finished.get(last as usize));
                self.expect(last.is_some_and(|last| Some(*last) <= at), || {
                    format!("{commit:?} is too far: finished at {last:?}, committed at {at:?}")
                });
                let goes_on = commit.offset >= before;
                self.expect(goes_on, || format!("{commit:?} lowers the committed offset {before}"));
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

impl Evidence {
    /// Checks whether the cause explains that a key ran again.
    fn allows(&self, key: &str, one: &Run, next: &Run) -> bool {
        match self.cause {
            Cause::None => false,
            Cause::Killed => self.kill_of(one).is_some_and(|kill| {
                let entry = kill.entries.get(key).map(Entry::state);
                kill.at <= next.begun && entry != Some(State::Completed)
            }),
            Cause::Stopped => {
                let stop = self.stop_of(one).filter(|_| !one.is_processed());
                stop.is_some_and(|stop| stop.from <= next.begun)
            }
            Cause::LetGo => matches!(one.over, Over::Dropped(at) if at <= next.begun),
        }
    }

    /// Finds the kill that hit the run.
    fn kill_of(&self, run: &Run) -> Option<&Kill> {
        self.kills.iter().find(|kill| kill.pid == run.pid && run.over == Over::Unknown)
    }

    /// Finds the suspension during which the run was not over.
    fn stop_of(&self, run: &Run) -> Option<&Stop> {
        let during = |stop: &&Stop| {
            let still = run.over().is_none_or(|over| over >= stop.from);
            stop.pid == run.pid && run.begun <= stop.to && still
        };
        self.stops.iter().find(during)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none may",
            Self::Killed => "at work in a process that was killed",
            Self::Stopped => "at work in a process that stood still",
            Self::LetGo => "let go unfinished",
        })
    }
}
