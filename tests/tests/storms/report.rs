//! Verifies the outcome of a storm.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use campanile::consumer::Summary;
use campanile::store::State;

use crate::ledger::{Ledger, Run, RunEnd, now};
use crate::store::Entries;
use crate::{COMMAND_TIMEOUT, LOCK_TTL};

/// How far behind a replica may be, on a busy machine.
const MAX_REPLICA_LAG: Duration = Duration::from_secs(1);

/// Minimum remaining life of a lock after the store becomes unavailable. A lock is renewed after
/// each third of its time to live, with jitter, and given up a tenth before its expiry.
const MIN_LOCK_REMAINING: Duration = LOCK_TTL.checked_div(2).expect("not zero");

/// Why a key may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No key may run twice.
    None,
    /// The lock could not be renewed during its whole time to live.
    LockExpiry,
    /// Redis has lost its last acknowledged writes.
    WriteLoss,
}

pub(crate) struct Fault {
    pub(crate) cause: Cause,
    pub(crate) started: Duration,
    pub(crate) ended: Duration,
}

#[derive(Default)]
pub(crate) struct Report {
    /// Keys that ran more than once, for the fault's cause.
    pub(crate) twice: usize,
    /// When the runs ended that lost their completions for that cause. Finally converted to the
    /// time since the start of the fault.
    pub(crate) lost_completions: Vec<Duration>,
    pub(crate) violations: Vec<String>,
}

/// A run, and its consumer.
#[derive(Debug)]
pub(crate) struct ConsumerRun {
    consumer: usize,
    pub(crate) run: Run,
}

/// Collects the runs of each key in the order in which they started, given a ledger per consumer.
pub(crate) fn runs_by_key(ledgers: &[Ledger]) -> BTreeMap<String, Vec<ConsumerRun>> {
    let mut runs_by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (consumer, ledger) in ledgers.iter().enumerate() {
        for run in ledger.with_runs(<[Run]>::to_vec) {
            runs_by_key.entry(run.key.clone()).or_default().push(ConsumerRun { consumer, run });
        }
    }
    runs_by_key
        .values_mut()
        .for_each(|runs| runs.sort_by_key(|consumer_run| consumer_run.run.started));
    runs_by_key
}

impl Report {
    pub(crate) fn evaluate(
        fault: &Fault,
        keys: usize,
        repeated: &HashSet<String>,
        runs_by_key: &BTreeMap<String, Vec<ConsumerRun>>,
        entries: &Entries,
        summaries: &[Summary],
    ) -> Self {
        let mut report = Self::default();
        let lost = keys - runs_by_key.len().min(keys);
        report.expect(lost == 0, || format!("{lost} keys never ran"));
        for runs in runs_by_key.values() {
            report.check_key(fault, repeated, runs);
            report.check_entry(fault, runs, entries);
        }
        for summary in summaries {
            // Nothing failed, and nothing was given up.
            let ended = summary.processed + summary.revoked + summary.unfinished;
            let is_ok = summary.retried == 0 && ended == summary.received;
            report.expect(is_ok, || format!("{summary:?}"));
        }
        report
    }

    /// Judges the runs of a key, in order.
    fn check_key(&mut self, fault: &Fault, repeated: &HashSet<String>, runs: &[ConsumerRun]) {
        let of_key =
            |what: &str| format!("{what}: {runs:#?}, fault {:?}", fault.started..fault.ended);
        let finished = runs.iter().any(|consumer_run| consumer_run.run.finished_at().is_some());
        self.expect(finished, || of_key("never processed"));
        // The other consumer may have been granted the key for a repeating record without learning
        // of it, because the reply was lost or the server died after replicating the grant. It
        // hands the attempt back once the store answers again. A consumer that takes the expired
        // lock over before then leaves the attempt counted. The call may have been sent before the
        // fault started.
        let first = &runs[0].run;
        let unanswered = fault.cause != Cause::None
            && repeated.contains(&first.key)
            && first.started + COMMAND_TIMEOUT >= fault.started + LOCK_TTL;
        let max_attempts = 1 + u32::from(unanswered);
        self.expect(first.attempt <= max_attempts, || of_key("an attempt was counted"));
        for (first, second) in runs.iter().zip(&runs[1..]) {
            let (one, next) = (&first.run, &second.run);
            let allowed = fault.allows(one, next);
            if fault.cause == Cause::WriteLoss {
                self.lost_completions.extend(one.finished_at());
            }
            self.expect(allowed, || of_key("ran twice without cause"));
            // A consumer that gives a lock up hands its attempt back. A lock that another consumer
            // takes over, as after a crash, leaves its attempt counted.
            let other_consumer =
                first.consumer != second.consumer || fault.cause == Cause::WriteLoss;
            let max_attempts = if other_consumer { one.attempt + 1 } else { one.attempt };
            self.expect(next.attempt <= max_attempts, || of_key("an attempt was counted"));
            let is_disjoint = ended_at(one).is_some_and(|end| end <= next.started);
            // Two consumers can hold a lock that Redis has lost, until one of them asks Redis. The one
            // that was granted the lock first may then be the one that starts last.
            let has_two_owners = !is_disjoint && fault.cause == Cause::WriteLoss;
            let rises = one.token < next.token || (has_two_owners && one.token != next.token);
            self.expect(rises, || of_key("the token did not rise"));
            self.expect(is_disjoint || has_two_owners, || of_key("runs overlap"));
        }
        self.twice += usize::from(runs.len() > 1);
    }

    fn check_entry(&mut self, fault: &Fault, runs: &[ConsumerRun], entries: &Entries) {
        let last = &runs.last().expect("a key that ran").run;
        let entry = entries.get(&last.key);
        let found = entry.map(|entry| (entry.state(), entry.attempt(), entry.token().get()));
        let expected = (State::Completed, u16::try_from(last.attempt).expect("few"), last.token);
        if found != Some(expected) && fault.cause == Cause::WriteLoss && fault.overlaps(last) {
            self.lost_completions.extend(last.finished_at());
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
        let overlaps = self.overlaps(one) && next.started >= self.started;
        match self.cause {
            Cause::None => false,
            Cause::WriteLoss => overlaps,
            Cause::LockExpiry => {
                let lost = match &one.end {
                    RunEnd::Running => false,
                    // The completion arrived after another consumer had acquired the key.
                    RunEnd::Finished(_) => true,
                    RunEnd::Dropped(at, lost) => {
                        lost.is_some() && *at >= self.started + MIN_LOCK_REMAINING
                    }
                };
                overlaps && lost && next.started >= self.started + MIN_LOCK_REMAINING
            }
        }
    }

    /// Checks whether the run was in flight during the fault, or ended so shortly before it that
    /// its writes may be lost.
    fn overlaps(&self, run: &Run) -> bool {
        let end = ended_at(run).unwrap_or(now());
        run.started <= self.ended && end + MAX_REPLICA_LAG >= self.started
    }
}

fn ended_at(run: &Run) -> Option<Duration> {
    match run.end {
        RunEnd::Running => None,
        RunEnd::Finished(at) | RunEnd::Dropped(at, _) => Some(at),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none may",
            Self::LockExpiry => "locks expired while Redis was unavailable",
            Self::WriteLoss => "last writes lost by the failover",
        })
    }
}
