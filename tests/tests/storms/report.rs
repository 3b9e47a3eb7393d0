//! Verifies the outcome of a storm.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use campanile::Summary;
use campanile::store::State;

use crate::LOCK_TTL;
use crate::ledger::{End, Ledger, Run, now};
use crate::store::Entries;

/// How far behind a replica may be, on a busy machine.
const BEHIND: Duration = Duration::from_secs(1);

/// Minimum remaining life of a lock after the store becomes unavailable. A lock is renewed after
/// each third of its time to live, with jitter, and given up a tenth before its expiry.
const LIVES: Duration = LOCK_TTL.checked_div(2).expect("not zero");

/// Why a key may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No key may run twice.
    None,
    /// The lock could not be renewed during its whole time to live.
    Expiry,
    /// Redis has lost its last acknowledged writes.
    Loss,
}

pub(crate) struct Fault {
    pub(crate) cause: Cause,
    pub(crate) begun: Duration,
    pub(crate) over: Duration,
}

#[derive(Default)]
pub(crate) struct Verdict {
    /// Keys that ran more than once, for the fault's cause.
    pub(crate) twice: usize,
    /// When the runs ended that lost their completions for that cause. Finally converted to the
    /// time since the start of the fault.
    pub(crate) lost: Vec<Duration>,
    pub(crate) violations: Vec<String>,
}

/// A run, and its consumer.
#[derive(Debug)]
pub(crate) struct Ran {
    consumer: usize,
    pub(crate) run: Run,
}

/// Collects the runs of each key in the order in which they started, given a ledger per consumer.
pub(crate) fn by_key(ledgers: &[Ledger]) -> BTreeMap<String, Vec<Ran>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (consumer, ledger) in ledgers.iter().enumerate() {
        for run in ledger.tell(<[Run]>::to_vec) {
            by_key.entry(run.key.clone()).or_default().push(Ran { consumer, run });
        }
    }
    by_key.values_mut().for_each(|runs| runs.sort_by_key(|ran| ran.run.begun));
    by_key
}

impl Verdict {
    pub(crate) fn of(
        fault: &Fault,
        keys: usize,
        repeated: &HashSet<String>,
        by_key: &BTreeMap<String, Vec<Ran>>,
        entries: &Entries,
        summaries: &[Summary],
    ) -> Self {
        let mut verdict = Self::default();
        let lost = keys - by_key.len().min(keys);
        verdict.expect(lost == 0, || format!("{lost} keys never ran"));
        for runs in by_key.values() {
            verdict.judge(fault, repeated, runs);
            verdict.judge_entry(fault, runs, entries);
        }
        for summary in summaries {
            // Nothing failed, and nothing was given up.
            let ended = summary.processed + summary.revoked + summary.left;
            let well = summary.retried == 0 && ended == summary.received;
            verdict.expect(well, || format!("{summary:?}"));
        }
        verdict
    }

    /// Judges the runs of a key, in order.
    fn judge(&mut self, fault: &Fault, repeated: &HashSet<String>, runs: &[Ran]) {
        let of_key = |what: &str| format!("{what}: {runs:#?}, fault {:?}", fault.begun..fault.over);
        let ended = runs.iter().any(|ran| ran.run.ended().is_some());
        self.expect(ended, || of_key("never processed"));
        // The other consumer may have been granted the key for a repeating record without learning
        // of it, because the reply was lost or the server died after replicating the grant. It
        // hands the attempt back once the store answers again. A consumer that takes the expired
        // lock over before then leaves the attempt counted.
        let first = &runs[0].run;
        let unanswered = fault.cause != Cause::None
            && repeated.contains(&first.key)
            && first.begun >= fault.begun + LOCK_TTL;
        let most = 1 + u32::from(unanswered);
        self.expect(first.attempt <= most, || of_key("an attempt was counted"));
        for (first, second) in runs.iter().zip(&runs[1..]) {
            let (one, next) = (&first.run, &second.run);
            let allowed = fault.allows(one, next);
            if fault.cause == Cause::Loss {
                self.lost.extend(one.ended());
            }
            self.expect(allowed, || of_key("ran twice without cause"));
            // A consumer that gives a lock up hands its attempt back. A lock that another consumer
            // takes over, as after a crash, leaves its attempt counted.
            let other = first.consumer != second.consumer || fault.cause == Cause::Loss;
            let most = if other { one.attempt + 1 } else { one.attempt };
            self.expect(next.attempt <= most, || of_key("an attempt was counted"));
            self.expect(one.token < next.token, || of_key("the token did not rise"));
            let apart = over(one).is_some_and(|over| over <= next.begun);
            // Two consumers can hold a lock that Redis has lost, until one of them asks Redis.
            self.expect(apart || fault.cause == Cause::Loss, || of_key("runs overlap"));
        }
        self.twice += usize::from(runs.len() > 1);
    }

    fn judge_entry(&mut self, fault: &Fault, runs: &[Ran], entries: &Entries) {
        let last = &runs.last().expect("a key that ran").run;
        let entry = entries.get(&last.key);
        let found = entry.map(|entry| (entry.state(), entry.attempt(), entry.token().get()));
        let expected = (State::Completed, u16::try_from(last.attempt).expect("few"), last.token);
        if found != Some(expected) && fault.cause == Cause::Loss && fault.met(last) {
            self.lost.extend(last.ended());
            return;
        }
        self.expect(found == Some(expected), || {
            format!("expected the entry {expected:?}, got {found:?}: {runs:#?}")
        });
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }
}

impl Fault {
    /// Checks whether the fault explains that a key ran again.
    fn allows(&self, one: &Run, next: &Run) -> bool {
        let met = self.met(one) && next.begun >= self.begun;
        match self.cause {
            Cause::None => false,
            Cause::Loss => met,
            Cause::Expiry => {
                let lost = match &one.end {
                    End::Runs => false,
                    // The completion arrived after another consumer had acquired the key.
                    End::Ended(_) => true,
                    End::Dropped(at, lost) => lost.is_some() && *at >= self.begun + LIVES,
                };
                met && lost && next.begun >= self.begun + LIVES
            }
        }
    }

    /// Checks whether the run was in flight during the fault, or ended so shortly before it that
    /// its writes may be lost.
    fn met(&self, run: &Run) -> bool {
        let since = over(run).unwrap_or(now());
        run.begun <= self.over && since + BEHIND >= self.begun
    }
}

/// Returns when the run finished or was dropped.
fn over(run: &Run) -> Option<Duration> {
    match run.end {
        End::Runs => None,
        End::Ended(at) | End::Dropped(at, _) => Some(at),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none may",
            Self::Expiry => "whose lock ended while Redis was away",
            Self::Loss => "whose last writes the failover lost",
        })
    }
}
