//! Outages of what handlers depend on, as they report them with [`error::unavailable`](campanile_core::error::unavailable).
//!
//! A record that has failed for an outage waits for its end: it is a witness of the outage. If the error names no
//! dependency, the other records of the route wait as well. One record at a time is tried, with growing pauses: a
//! witness and another record in turn. The outage ends when a witness gets further, or, if it has no name, when
//! several other records do.

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
const MAX_PAUSE: Duration = Duration::from_secs(4);

/// After this many other records in a row that have got further, an outage without a name is over.
const ENDED_BY_OTHERS: u32 = 8;

/// How long to wait for another record than a witness. There is one, unless its partition is revoked or paused.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of outages that a record may outlive: each time, others have got further, and it has failed
/// again. From then on, its attempts count as failed.
const MAX_OUTLIVED: u32 = 8;

/// How long a record may wait for outages, also if no other record shows that they are over. From then on, its
/// attempts count as failed.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Identifies an outage. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutageId(u64);

/// The outages that a record has seen.
#[derive(Debug)]
pub(crate) struct Witness {
    /// The outage that it waits for.
    pub(crate) outage: OutageId,
    since: Instant,
    outlived: u32,
}

impl Witness {
    /// Notes that the outage has ended while this record waited for it.
    pub(crate) fn outlive(&mut self) {
        self.outlived += 1;
    }

    /// Checks whether the record's errors say nothing about a dependency any more.
    pub(crate) fn is_denied(&self) -> bool {
        self.outlived >= MAX_OUTLIVED || self.since.elapsed() >= MAX_WAIT
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
    /// The waiting records that have failed for it. Some may have been removed.
    witnesses: VecDeque<QueueId>,
    /// The number of probes that have failed for it, including the record that began it.
    failures: u32,
    probe: Probe,
    /// Whether the next probe is another record than a witness.
    is_others_turn: bool,
    /// The number of other records in a row that have got further.
    passed: u32,
}

enum Probe {
    /// The next probe is due when this timer fires.
    After(Pin<Box<Sleep>>),
    /// The next record that is not a witness is the probe, unless none comes until this timer fires.
    Other(Pin<Box<Sleep>>),
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

/// Records that may be started, because an outage is over.
pub(crate) struct Ended {
    pub(crate) route: usize,
    pub(crate) witnesses: VecDeque<QueueId>,
}

impl Outages {
    /// Checks whether this record may be started now, as far as outages are concerned.
    pub(crate) fn allow(&self, id: QueueId, route: usize) -> bool {
        self.all.iter().filter(|outage| outage.route == route).all(|outage| match outage.probe {
            Probe::Record(probe) if probe == id => true,
            Probe::Other(_) => true,
            _ => outage.dependency.is_some(),
        })
    }

    /// Lets a witness wait, unless the outage is over or the record is its probe. Returns whether it waits.
    pub(crate) fn wait(&mut self, id: QueueId, of: OutageId) -> bool {
        let Some(outage) = self.all.iter_mut().find(|outage| outage.id == of) else {
            return false;
        };
        let waits = !matches!(outage.probe, Probe::Record(probe) if probe == id);
        if waits {
            outage.witnesses.push_back(id);
        }
        waits
    }

    /// Checks whether records of this route are started one at a time.
    pub(crate) fn concern(&self, route: usize) -> bool {
        self.all.iter().any(|outage| outage.route == route)
    }

    /// Lists what is unavailable.
    pub(crate) fn unavailable(&self) -> Vec<UnavailableDependency> {
        let of = |outage: &Outage| UnavailableDependency {
            dependency: outage.dependency,
            elapsed: outage.since.elapsed(),
            waiting: outage.witnesses.len(),
            error: outage.error.clone(),
        };
        self.all.iter().map(of).collect()
    }

    /// Notes that a record is started.
    pub(crate) fn on_start(&mut self, id: QueueId, route: usize) {
        for outage in self.all.iter_mut().filter(|outage| outage.route == route) {
            if let Probe::Other(_) = outage.probe {
                outage.probe = Probe::Record(id);
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
        // The record may have been the probe of another outage.
        let others = self.all.iter_mut().filter(|outage| !same(outage) && outage.is_probe(id));
        others.for_each(|outage| outage.probe_after(Duration::ZERO));
        let index = self.all.iter().position(same).unwrap_or_else(|| {
            tracing::warn!(
                dependency,
                error,
                "a dependency of the handlers is unavailable; records that need it wait"
            );
            self.next += 1;
            self.all.push(Outage::new(OutageId(self.next), route, dependency, id));
            self.all.len() - 1
        });
        let outage = &mut self.all[index];
        outage.error = error.into();
        outage.witnesses.push_back(id);
        if outage.is_probe(id) {
            outage.failures = outage.failures.saturating_add(1);
            outage.passed = 0;
            outage.probe_after(pause(outage.failures));
        }
        let outage = outage.id;
        match before {
            Some(witness) => Box::new(Witness { outage, ..*witness }),
            None => Box::new(Witness { outage, since: Instant::now(), outlived: 0 }),
        }
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
            if !outage.is_probe(id) {
                return false;
            }
            outage.passed += 1;
            outage.is_others_turn = true;
            outage.probe_after(Duration::ZERO);
            outage.passed >= ENDED_BY_OTHERS
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
            let (Probe::After(timer) | Probe::Other(timer)) = &mut outage.probe else {
                return true;
            };
            if next.is_some() || timer.as_mut().poll(cx).is_pending() {
                return true;
            }
            let is_others_turn = outage.is_others_turn && has_parked(outage.route);
            outage.is_others_turn = !outage.is_others_turn && outage.dependency.is_none();
            if is_others_turn {
                outage.probe = Probe::Other(Box::pin(sleep(OTHERS_TIMEOUT)));
                next = Some(Next::Route(outage.route));
                return true;
            }
            while let Some(id) = outage.witnesses.pop_front() {
                if is_waiting(id) {
                    outage.probe = Probe::Record(id);
                    next = Some(Next::Witness(id));
                    return true;
                }
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
            is_others_turn: false,
            passed: 0,
        }
    }

    fn is_probe(&self, id: QueueId) -> bool {
        matches!(self.probe, Probe::Record(probe) if probe == id)
    }

    fn probe_after(&mut self, pause: Duration) {
        self.probe = Probe::After(Box::pin(sleep(pause)));
    }

    fn end(self) -> Ended {
        tracing::info!(
            dependency = self.dependency,
            after = ?self.since.elapsed(),
            "the dependency of the handlers is available again"
        );
        Ended { route: self.route, witnesses: self.witnesses }
    }
}

/// The pause after this many failed probes. It doubles, up to a maximum with which all records continue within 5 s
/// after the dependency is back. Half of it is random, so that the members of a group do not probe at the same time.
fn pause(failures: u32) -> Duration {
    let ceiling = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(31));
    ceiling.min(MAX_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}
