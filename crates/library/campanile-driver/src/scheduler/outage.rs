//! Outages of what handlers depend on, as they report them with [`error::unavailable`](campanile_core::error::unavailable).
//!
//! A record that has failed for an outage waits for its end: it is a witness of the outage. If the error names no
//! dependency, the other records of the route wait as well, once a second record has failed. One record at a time is
//! tried, with growing pauses: a witness and another record in turn. The outage ends when a witness gets further, or
//! when several other records do.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::reports::QueueId;
use crate::status::UnavailableDependency;

/// The longest pauses after the first failed probe, and between later ones.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(4);

/// After this many other records that have got further, and none that has failed for the first time, the fault is
/// with the witnesses of an outage without a name.
const ENDED_BY_OTHERS: u32 = 8;

/// How long to wait for another record than a witness. There is one, unless its partition is revoked or paused.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

/// A probe that takes longer makes room for another one: its handler may hang, or have more to do.
const PROBE_TIMEOUT: Duration = MAX_PAUSE;

/// How often a record may fail after others have got further. From then on, its attempts count as failed, but not
/// before [`MIN_WAIT`]: a dependency that admits some calls and not others is no fault of the record.
const MAX_OUTLIVED: u32 = 8;
const MIN_WAIT: Duration = Duration::from_secs(10 * 60);

/// How long a record may wait for outages, also if no other record shows that they are over. From then on, its
/// attempts count as failed.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Identifies an outage. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutageId(u64);

/// What a record has seen of outages, in this process.
#[derive(Debug)]
pub(crate) struct Witness {
    /// The outage that it waits for.
    pub(crate) outage: OutageId,
    since: Instant,
    outlived: u32,
}

impl Witness {
    fn new(outage: OutageId) -> Self {
        Self { outage, since: Instant::now(), outlived: 0 }
    }

    /// Notes that others have got further, and that this record has not.
    pub(crate) fn outlive(&mut self) {
        self.outlived += 1;
    }

    /// Checks whether the record's errors say nothing about a dependency any more.
    pub(crate) fn is_denied(&self) -> bool {
        let waited = self.since.elapsed();
        (self.outlived >= MAX_OUTLIVED && waited >= MIN_WAIT) || waited >= MAX_WAIT
    }
}

/// All outages. There are few.
#[derive(Default)]
pub(crate) struct Outages {
    all: Vec<Outage>,
    next: u64,
}

struct Outage {
    id: OutageId,
    route: usize,
    dependency: Option<&'static str>,
    since: Instant,
    /// The text of the last error.
    error: Arc<str>,
    /// The waiting records that have failed for it. Some may have been removed meanwhile.
    witnesses: VecDeque<QueueId>,
    /// The number of probes that have failed for it, including the record that began it.
    failures: u32,
    probe: Probe,
    /// When the next probe is due, whatever has become of the last one.
    timer: Pin<Box<Sleep>>,
    /// Whether the next probe is another record than a witness.
    is_others_turn: bool,
    /// The number of other records that have got further since one has failed for the first time.
    passed: u32,
    /// Whether more than one record has failed for it.
    is_shared: bool,
}

enum Probe {
    /// There is none until the timer fires.
    After,
    /// The next record that is not a witness is the probe.
    Other,
    /// The first record of this queue is the probe.
    Record(QueueId),
}

/// What an outage lets through next.
pub(crate) enum Next {
    /// This witness.
    Witness(QueueId),
    /// The parked records of this route, of which one is the probe.
    Route(usize),
}

/// The witnesses of an outage that is over. The other records of the route may be started.
pub(crate) struct Ended {
    pub(crate) route: usize,
    pub(crate) witnesses: VecDeque<QueueId>,
    /// Whether others have got further, and no witness. Then the witnesses wait once more.
    pub(crate) by_others: bool,
}

impl Outages {
    /// Checks whether this record may be started now, as far as outages are concerned.
    pub(crate) fn allow(&self, id: QueueId, route: usize) -> bool {
        let mut of_route = self.all.iter().filter(|outage| outage.route == route);
        of_route.all(|outage| {
            !outage.holds_up() || outage.is_probe(id) || matches!(outage.probe, Probe::Other)
        })
    }

    /// Checks whether there is no outage, as nearly always.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Lets a witness wait, unless the outage is over or the record is its probe. Returns whether it waits.
    pub(crate) fn wait(&mut self, id: QueueId, of: OutageId) -> bool {
        let Some(outage) = self.all.iter_mut().find(|outage| outage.id == of) else {
            return false;
        };
        let waits = !outage.is_probe(id);
        if waits {
            outage.witnesses.push_back(id);
        }
        waits
    }

    /// Checks whether records of this route wait for an outage, and are started one at a time.
    pub(crate) fn concern(&self, route: usize) -> bool {
        self.all.iter().any(|outage| outage.route == route && outage.holds_up())
    }

    /// Lists what is unavailable, and forgets the witnesses that do not wait any more.
    pub(crate) fn unavailable(
        &mut self,
        mut is_waiting: impl FnMut(QueueId) -> bool,
    ) -> Vec<UnavailableDependency> {
        let of = |outage: &mut Outage| {
            outage.witnesses.retain(|id| is_waiting(*id));
            UnavailableDependency {
                dependency: outage.dependency,
                elapsed: outage.since.elapsed(),
                waiting: outage.witnesses.len(),
                error: outage.error.clone(),
            }
        };
        self.all.iter_mut().map(of).collect()
    }

    /// Notes that a record is started.
    pub(crate) fn on_start(&mut self, id: QueueId, route: usize) {
        for outage in self.all.iter_mut().filter(|outage| outage.route == route) {
            if let Probe::Other = outage.probe {
                outage.start_probe(Probe::Record(id), PROBE_TIMEOUT);
            }
        }
    }

    /// Notes that a record has failed because of a dependency. Returns what it has to wait for.
    pub(crate) fn on_failure(
        &mut self,
        id: QueueId,
        route: usize,
        dependency: Option<&'static str>,
        before: Option<Box<Witness>>,
        error: &str,
    ) -> Box<Witness> {
        let same = |outage: &Outage| (outage.route, outage.dependency) == (route, dependency);
        // The record may have been the probe of another outage, whose pauses it has seen.
        let mut failures = 0;
        for outage in self.all.iter_mut().filter(|outage| !same(outage) && outage.is_probe(id)) {
            failures = failures.max(outage.failures);
            outage.probe_after(Duration::ZERO);
        }
        let known = self.all.iter().position(same);
        let index = known.unwrap_or_else(|| {
            tracing::warn!(
                dependency,
                error,
                "a dependency of the handlers is unavailable; records that need it wait"
            );
            self.next += 1;
            let outage = Outage::new(OutageId(self.next), route, dependency, id);
            self.all.push(Outage { failures, ..outage });
            self.all.len() - 1
        });
        let outage = &mut self.all[index];
        outage.error = error.into();
        outage.witnesses.push_back(id);
        let mut witness = match before {
            Some(mut witness) if witness.outage == outage.id => {
                if outage.passed >= ENDED_BY_OTHERS {
                    outage.passed = 0;
                    witness.outlive();
                }
                witness
            }
            before => {
                outage.is_shared |= known.is_some();
                outage.passed = 0;
                before.unwrap_or_else(|| Box::new(Witness::new(outage.id)))
            }
        };
        witness.outage = outage.id;
        if outage.is_probe(id) {
            outage.failures = outage.failures.saturating_add(1);
            outage.probe_after(pause(outage.failures));
        }
        witness
    }

    /// Notes that the handler of a record has got further than the dependency. Returns the outages that are over.
    pub(crate) fn on_passed(
        &mut self,
        id: QueueId,
        route: usize,
        witness: Option<&Witness>,
    ) -> Vec<Ended> {
        let is_over = |outage: &mut Outage| {
            if outage.route != route {
                return false;
            }
            if witness.is_some_and(|witness| witness.outage == outage.id) {
                return true;
            }
            if outage.is_probe(id) {
                outage.passed += 1;
                outage.failures = 0;
                outage.probe_after(Duration::ZERO);
            } else if outage.dependency.is_none() && !outage.is_shared {
                // Those that need another dependency say nothing about this one.
                outage.passed = outage.passed.saturating_add(1);
            }
            outage.holds_up() && outage.passed >= ENDED_BY_OTHERS
        };
        let ended = self.all.extract_if(.., is_over);
        ended.map(Outage::end).collect()
    }

    /// Notes that the attempt at this record said nothing about a dependency, or that the record was removed.
    pub(crate) fn on_inconclusive(&mut self, id: QueueId) {
        for outage in self.all.iter_mut().filter(|outage| outage.is_probe(id)) {
            outage.probe_after(Duration::ZERO);
        }
    }

    /// Polls for the next probe. `is_waiting` says whether a witness still waits, and `has_parked` whether the
    /// route has other records.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        mut is_waiting: impl FnMut(QueueId) -> bool,
        has_parked: impl Fn(usize) -> bool,
    ) -> Poll<Next> {
        let mut next = None;
        self.all.retain_mut(|outage| {
            if next.is_some() || outage.timer.as_mut().poll(cx).is_pending() {
                return true;
            }
            let is_others_turn = outage.is_others_turn && has_parked(outage.route);
            outage.is_others_turn = !outage.is_others_turn && outage.holds_up();
            if is_others_turn {
                outage.start_probe(Probe::Other, OTHERS_TIMEOUT);
                next = Some(Next::Route(outage.route));
                return true;
            }
            while let Some(id) = outage.witnesses.pop_front() {
                if is_waiting(id) {
                    outage.start_probe(Probe::Record(id), PROBE_TIMEOUT);
                    next = Some(Next::Witness(id));
                    return true;
                }
            }
            if let Probe::Record(id) = outage.probe {
                outage.start_probe(Probe::Record(id), PROBE_TIMEOUT);
                return true;
            }
            // They were revoked.
            tracing::info!(
                dependency = outage.dependency,
                "no record waits any more for the dependency that was unavailable"
            );
            next = Some(Next::Route(outage.route));
            false
        });
        next.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Outage {
    fn new(id: OutageId, route: usize, dependency: Option<&'static str>, first: QueueId) -> Self {
        Self {
            id,
            route,
            dependency,
            since: Instant::now(),
            error: "".into(),
            witnesses: VecDeque::new(),
            failures: 0,
            probe: Probe::Record(first),
            timer: Box::pin(sleep(Duration::ZERO)),
            is_others_turn: false,
            passed: 0,
            is_shared: false,
        }
    }

    /// Checks whether records that have not failed for it wait as well.
    fn holds_up(&self) -> bool {
        self.dependency.is_none() && self.is_shared
    }

    fn is_probe(&self, id: QueueId) -> bool {
        matches!(self.probe, Probe::Record(probe) if probe == id)
    }

    fn probe_after(&mut self, pause: Duration) {
        self.start_probe(Probe::After, pause);
    }

    fn start_probe(&mut self, probe: Probe, timeout: Duration) {
        self.probe = probe;
        self.timer = Box::pin(sleep(timeout));
    }

    fn end(self) -> Ended {
        tracing::info!(
            dependency = self.dependency,
            after = ?self.since.elapsed(),
            "the dependency of the handlers is available again"
        );
        let by_others = self.passed >= ENDED_BY_OTHERS;
        Ended { route: self.route, witnesses: self.witnesses, by_others }
    }
}

/// The pause after this many failed probes. It doubles, up to a maximum with which all records continue within 5 s
/// after the dependency is back. Half of it is random, so that the members of a group do not probe at the same time.
fn pause(failures: u32) -> Duration {
    let ceiling = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(31));
    ceiling.min(MAX_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}
