//! What was broken, and when.

use std::collections::HashMap;

use super::spans::{Spans, Weights};
use crate::{Event, FaultKind, History, Peer};

/// The faults of a history, by the number of the process.
pub(super) struct Faults {
    /// At least 1.
    pub(super) lock_ttl: u64,
    /// The faults that may end a lock: when each began and ended, and its event.
    ending: Vec<Interval>,
    /// When each process was killed, sorted.
    killed: Vec<Vec<Interval>>,
    suspended: Vec<Spans>,
    cut_off: Vec<Spans>,
    unavailable: Spans,
    lost_writes: Spans,
    evicted: Spans,
    recreated: Spans,
    broker_killed: Spans,
    /// How far each step has set the store's clock forward.
    steps: Weights,
    /// How many attempts each fault may have counted without a run.
    uncounted: Weights,
}

/// When something began and ended, and the event that says so.
type Interval = (u64, u64, usize);

/// For how long a lock could not be renewed, by reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrenewed {
    pub(super) suspended: u128,
    pub(super) unavailable: u128,
    pub(super) cut_off: u128,
    pub(super) stepped: u128,
}

impl Faults {
    pub(super) fn new(history: &History) -> Self {
        let lock_ttl = history.settings.lock_ttl.max(1);
        let end = history.events.iter().map(|line| line.event.at()).max().unwrap_or_default();
        let names: HashMap<&str, usize> =
            history.processes.iter().enumerate().map(|(n, process)| (&*process.name, n)).collect();
        let count = history.processes.len();
        let mut killed: Vec<Vec<Interval>> = vec![Vec::new(); count];
        let (mut suspended, mut cut_off) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let (mut unavailable, mut lost_writes, mut evicted) = (Vec::new(), Vec::new(), Vec::new());
        let (mut steps, mut uncounted) = (Vec::new(), Vec::new());
        let (mut recreated, mut broker_killed) = (Vec::new(), Vec::new());
        let mut ending = Vec::new();
        for (event, line) in history.events.iter().enumerate() {
            let Event::Fault(fault) = &line.event else { continue };
            let from = fault.at;
            let span = (from, fault.until.unwrap_or(end).max(from));
            let weighted = (span.0, span.1, u128::from((span.1 - span.0) / lock_ttl) + 1);
            match &fault.kind {
                FaultKind::Killed { process } => {
                    uncounted.push((from, from, 1));
                    if let Some(&process) = names.get(&**process) {
                        let latest = fault.until.unwrap_or(from.saturating_add(lock_ttl));
                        killed[process].push((from, latest.max(from), event));
                    }
                }
                FaultKind::Suspended { process } => {
                    uncounted.push(weighted);
                    ending.push((span.0, span.1, event));
                    if let Some(&process) = names.get(&**process) {
                        suspended[process].push(span);
                    }
                }
                FaultKind::StoreUnavailable => {
                    uncounted.push(weighted);
                    ending.push((span.0, span.1, event));
                    unavailable.push(span);
                }
                FaultKind::StoreLostWrites => {
                    uncounted.push(weighted);
                    ending.push((span.0, span.1, event));
                    lost_writes.push(span);
                }
                FaultKind::StoreSessionsEnded => uncounted.push(weighted),
                FaultKind::StoreEvicted => {
                    ending.push((span.0, span.1, event));
                    evicted.push(span);
                }
                FaultKind::ClockStepped { by } => {
                    let until = fault.until.unwrap_or(from).max(from);
                    uncounted.push((from, until, 1));
                    ending.push((from, until, event));
                    steps.push((from, until, u128::try_from(*by).unwrap_or_default()));
                }
                FaultKind::NetworkCut { process, peer: Peer::Store } => {
                    uncounted.push(weighted);
                    ending.push((span.0, span.1, event));
                    match process {
                        None => cut_off.iter_mut().for_each(|spans| spans.push(span)),
                        Some(process) => {
                            if let Some(&process) = names.get(&**process) {
                                cut_off[process].push(span);
                            }
                        }
                    }
                }
                FaultKind::TopicRecreated => recreated.push(span),
                FaultKind::BrokerKilled => broker_killed.push(span),
                FaultKind::NetworkCut { peer: Peer::Broker, .. } => {}
            }
        }
        killed.iter_mut().for_each(|times| times.sort_unstable());
        let collect = |spans: Vec<Vec<_>>| spans.into_iter().map(Spans::from_iter).collect();
        Self {
            lock_ttl,
            ending,
            killed,
            suspended: collect(suspended),
            cut_off: collect(cut_off),
            unavailable: unavailable.into_iter().collect(),
            lost_writes: lost_writes.into_iter().collect(),
            evicted: evicted.into_iter().collect(),
            recreated: recreated.into_iter().collect(),
            broker_killed: broker_killed.into_iter().collect(),
            steps: steps.into_iter().collect(),
            uncounted: uncounted.into_iter().collect(),
        }
    }

    /// Lists the events of the faults of this interval that may have ended a lock.
    pub(super) fn ending(&self, from: u64, until: u64) -> impl Iterator<Item = usize> {
        let touches = move |(start, end, _): &&Interval| *start <= until && *end >= from;
        self.ending.iter().filter(touches).map(|(.., event)| *event)
    }

    /// Finds when a process was killed that began a run at this time. If the kill had ended before, the
    /// process was restarted under its old name, or lived on.
    pub(super) fn killed(&self, process: usize, began: u64) -> Option<u64> {
        self.killed[process].iter().find(|(_, end, _)| *end >= began).map(|(at, ..)| *at)
    }

    /// Finds the event of the last kill of a process by this time.
    pub(super) fn last_kill(&self, process: usize, by: u64) -> Option<usize> {
        let kills = &self.killed[process];
        let after = kills.partition_point(|(at, ..)| *at <= by);
        after.checked_sub(1).map(|last| kills[last].2)
    }

    /// Checks whether a kill of a process had ended before this time.
    pub(super) fn has_ended(&self, process: usize, at: u64) -> bool {
        self.killed[process].iter().any(|(_, end, _)| *end < at)
    }

    /// Checks whether a process was suspended at some time of this interval.
    pub(super) fn was_suspended(&self, process: usize, from: u64, until: u64) -> bool {
        self.suspended[process].touches(from, until)
    }

    /// Checks whether the store's clock was set forward at some time of this interval.
    pub(super) fn was_stepped(&self, from: u64, until: u64) -> bool {
        self.steps.touching(from, until) > 0
    }

    /// Checks whether the store was unavailable, or the process cut off from it, at some time of this
    /// interval.
    pub(super) fn was_away(&self, process: usize, from: u64, until: u64) -> bool {
        self.unavailable.touches(from, until) || self.cut_off[process].touches(from, until)
    }

    /// Checks whether consumers may not have known for a part of this time that a topic was recreated.
    pub(super) fn is_recreated_within(&self, from: u64, until: u64) -> bool {
        self.recreated.touches(from, until)
    }

    /// Checks whether consumers may not have known at this time that a topic was recreated.
    pub(super) fn is_recreated(&self, at: u64) -> bool {
        self.recreated.touches(at, at)
    }

    /// Checks whether a broker was down for a part of this time because it was killed.
    pub(super) fn is_broker_killed(&self, from: u64, until: u64) -> bool {
        self.broker_killed.touches(from, until)
    }

    /// Checks whether the store lost writes of some time of this interval.
    pub(super) fn lost_writes(&self, from: u64, until: u64) -> bool {
        self.lost_writes.touches(from, until)
    }

    /// Checks whether the store removed entries at some time of this interval.
    pub(super) fn evicted(&self, from: u64, until: u64) -> bool {
        self.evicted.touches(from, until)
    }

    /// Computes for how long a process could not renew a lock in this interval. `None` if it is too
    /// short for a lock to expire: a lock is renewed after a third of its time to live, with jitter,
    /// so at least half of that time remains.
    pub(super) fn unrenewed(&self, process: usize, from: u64, until: u64) -> Option<Unrenewed> {
        let unrenewed = Unrenewed {
            suspended: self.suspended[process].covered(from, until).into(),
            unavailable: self.unavailable.covered(from, until).into(),
            cut_off: self.cut_off[process].covered(from, until).into(),
            stepped: self.steps.touching(from, until),
        };
        let Unrenewed { suspended, unavailable, cut_off, stepped } = unrenewed;
        let total = suspended + unavailable + cut_off + stepped;
        (total >= self.lock_ttl.div_ceil(2).into()).then_some(unrenewed)
    }

    /// Computes how many attempts the faults of this interval may have counted without a run.
    pub(super) fn uncounted(&self, from: u64, until: u64) -> u128 {
        self.uncounted.touching(from, until)
    }
}
