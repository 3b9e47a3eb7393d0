//! What is held against a storm.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use campanile::Summary;
use campanile::store::State;

use crate::LOCK_TTL;
use crate::ledger::{End, Ledger, Run, now};
use crate::store::Entries;

/// How far behind a replica may be, on a machine that is busy.
const BEHIND: Duration = Duration::from_secs(1);

/// A lock is renewed each third of its time to live, with some jitter, and given up a tenth before its
/// end: so it lives at least so long after the store has gone.
const LIVES: Duration = LOCK_TTL.checked_div(2).expect("not zero");

/// Why a key may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// For no reason.
    None,
    /// Its lock could not be renewed for as long as it lived.
    Expiry,
    /// Redis has lost the last that it had acknowledged.
    Loss,
}

pub(crate) struct Fault {
    pub(crate) cause: Cause,
    pub(crate) begun: Duration,
    pub(crate) over: Duration,
}

#[derive(Default)]
pub(crate) struct Verdict {
    /// Keys that ran more than once, for the cause that the fault gives.
    pub(crate) twice: usize,
    /// When the runs came to their ends whose completions were lost, for that cause; in the end, how
    /// long after the fault had begun.
    pub(crate) lost: Vec<Duration>,
    pub(crate) violations: Vec<String>,
}

/// A run, and at which consumer.
#[derive(Debug)]
pub(crate) struct Ran {
    consumer: usize,
    pub(crate) run: Run,
}

/// The runs of each key in these ledgers, one of each consumer, in the order in which they began.
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

    /// The runs of one key, in their order.
    fn judge(&mut self, fault: &Fault, repeated: &HashSet<String>, runs: &[Ran]) {
        let of_key = |what: &str| format!("{what}: {runs:#?}, fault {:?}", fault.begun..fault.over);
        let ended = runs.iter().any(|ran| ran.run.ended().is_some());
        self.expect(ended, || of_key("never processed"));
        // The other consumer may have been granted the key for a record that repeats it, and not been
        // told so: for its reply was lost, or the server died that had told its replica. It hands that
        // back once it is answered again; whoever takes the lock over before, since it has ended, leaves
        // its attempt behind.
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
            // Who gives a lock up hands its attempt back; a lock that another takes over, as after a
            // crash, leaves its attempt behind.
            let other = first.consumer != second.consumer || fault.cause == Cause::Loss;
            let most = if other { one.attempt + 1 } else { one.attempt };
            self.expect(next.attempt <= most, || of_key("an attempt was counted"));
            self.expect(one.token < next.token, || of_key("the token did not rise"));
            let apart = over(one).is_some_and(|over| over <= next.begun);
            // A lock that Redis has lost is held by two for as long as nobody asks.
            self.expect(apart || fault.cause == Cause::Loss, || of_key("two at a time"));
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
            format!("the entry is {found:?}, not {expected:?}: {runs:#?}")
        });
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(otherwise());
        }
    }
}

impl Fault {
    /// Whether it explains that a key ran once more.
    fn allows(&self, one: &Run, next: &Run) -> bool {
        let met = self.met(one) && next.begun >= self.begun;
        match self.cause {
            Cause::None => false,
            Cause::Loss => met,
            Cause::Expiry => {
                let lost = match &one.end {
                    End::Runs => false,
                    // Its completion came after another had taken the key.
                    End::Ended(_) => true,
                    End::Dropped(at, lost) => lost.is_some() && *at >= self.begun + LIVES,
                };
                met && lost && next.begun >= self.begun + LIVES
            }
        }
    }

    /// Whether it was at work during the fault, or so shortly before that not all of it may be kept.
    fn met(&self, run: &Run) -> bool {
        let since = over(run).unwrap_or(now());
        run.begun <= self.over && since + BEHIND >= self.begun
    }
}

/// When it ended or was dropped.
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
