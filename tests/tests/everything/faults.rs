//! What all threads of the campaign share: the faults so far, and whether it continues.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use std::{env, fmt};

use crate::operator;
use campanile::lock::Clock;
use campanile_test::history::{FaultKind, HistoryRecorder};

/// The interval at which threads check whether they continue.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// What an operator does, and is no fault.
const PLANNED: &[&str] = &[
    "append-only file turned off",
    "commits made asynchronous",
    "eviction allowed",
    "failed over by command",
    operator::ADDED,
    operator::DELETED,
    operator::QUOTA,
    operator::RECREATED,
    operator::RETENTION,
    "process stopped",
    "replica promoted",
    "scripts flushed",
    "slots moved",
];

/// The faults and planned changes by kind, and the end of the campaign.
#[derive(Default)]
pub(crate) struct Faults {
    by_kind: Mutex<BTreeMap<&'static str, usize>>,
    pub(crate) records: AtomicUsize,
    is_over: AtomicBool,
    /// The only kinds, or none if all are injected.
    only: Vec<String>,
}

impl Faults {
    pub(crate) fn count(&self, kind: &'static str) {
        let mut by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        *by_kind.entry(kind).or_default() += 1;
    }

    /// Creates the faults of a campaign, with the kinds that `CAMPANILE_EVERYTHING_ONLY` names.
    pub(crate) fn from_env() -> Self {
        let only = env::var("CAMPANILE_EVERYTHING_ONLY").unwrap_or_default();
        let only = only.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self { only: only.map(str::to_owned).collect(), ..Self::default() }
    }

    /// Checks whether faults of this kind are injected.
    pub(crate) fn allows(&self, kind: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == kind)
    }

    /// Checks whether faults of some kinds are not injected.
    pub(crate) fn are_restricted(&self) -> bool {
        !self.only.is_empty()
    }

    /// Returns the number of faults, with planned changes if the kinds are restricted.
    pub(crate) fn injected(&self) -> usize {
        let (faults, planned) = self.totals();
        if self.only.is_empty() { faults } else { faults + planned }
    }

    /// Returns the number of faults, and that of planned changes.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = PLANNED.iter().filter_map(|kind| by_kind.get(kind)).sum();
        (by_kind.values().sum::<usize>() - planned, planned)
    }

    /// Checks whether no further faults are injected.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Ends the campaign if a thread panics, so that the other threads end, too.
    pub(crate) fn end_on_panic(&self) -> impl Drop + '_ {
        struct Guard<'a>(&'a Faults);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if thread::panicking() {
                    self.0.end();
                }
            }
        }
        Guard(self)
    }
}

/// Lists the kinds, such as `3 broker killed, 12 process killed`.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        let counts: Vec<_> =
            by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        f.write_str(&counts.join(", "))
    }
}

/// Injects faults of one server, and records them in the histories of the groups that it affects.
pub(crate) struct Injector<'a> {
    pub(crate) rng: fastrand::Rng,
    pub(crate) recorders: Vec<HistoryRecorder>,
    pub(crate) faults: &'a Faults,
    /// How many faults were injected.
    pub(crate) injected: usize,
}

impl<'a> Injector<'a> {
    pub(crate) fn new(
        rng: fastrand::Rng,
        recorders: Vec<HistoryRecorder>,
        faults: &'a Faults,
    ) -> Self {
        Self { rng, recorders, faults, injected: 0 }
    }
}

impl Injector<'_> {
    /// Picks a number of milliseconds.
    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    /// Sleeps for a random number of milliseconds.
    pub(crate) fn sleep(&mut self, range: Range<u64>) {
        thread::sleep(self.millis(range));
    }

    /// Sleeps for a random number of milliseconds, or until the campaign is over. Returns whether it
    /// continues.
    pub(crate) fn pause(&mut self, range: Range<u64>) -> bool {
        let clock = Clock::boot();
        let until = clock.now() + self.millis(range);
        while !self.faults.is_over() && clock.now() < until {
            thread::sleep(TICK);
        }
        !self.faults.is_over()
    }

    /// Reads the clock of the histories.
    pub(crate) fn now(&self) -> u64 {
        self.recorders[0].now()
    }

    /// Records a fault from this time, with an effect until this long after now.
    pub(crate) fn record(&self, from: u64, effect: Duration, kind: &FaultKind) {
        for recorder in &self.recorders {
            let until = recorder.now() + effect.as_micros() as u64;
            recorder.fault(from, Some(until), kind.clone());
        }
    }

    /// Injects a fault, which lasts as long as the closure and has an effect for this long after it.
    pub(crate) fn inject(
        &mut self,
        name: &'static str,
        kind: &FaultKind,
        effect: Duration,
        fault: impl FnOnce(&mut Self),
    ) {
        if !self.faults.allows(name) {
            return;
        }
        self.faults.count(name);
        self.injected += 1;
        let from = self.now();
        fault(self);
        self.record(from, effect, kind);
    }
}
