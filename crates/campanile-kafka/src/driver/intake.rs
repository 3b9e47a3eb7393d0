//! The intake: how much is read, and from which partitions.

use std::sync::Arc;

use tokio::time::Instant;

use super::assignment::Assignment;
use super::budget::{Amount, Usage};
use super::flow::{self, ALLOWANCE, Flow};
use super::source::Source;

/// The budget and the partitions that share it.
pub(super) struct Intake {
    budget: Amount,
    total: Arc<Usage>,
    flow: Flow,
    start: Instant,
    partitions: Vec<Fed>,
    /// The number of paused partitions.
    paused: usize,
    /// The number of partitions of retry topics.
    retries: usize,
}

/// An assigned partition.
struct Fed {
    assignment: Arc<Assignment>,
    paused: bool,
}

impl Intake {
    pub(super) fn new(budget: Amount, total: Arc<Usage>) -> Self {
        let (flow, start, partitions) = (Flow::Open, Instant::now(), Vec::new());
        Self { budget, total, flow, start, partitions, paused: 0, retries: 0 }
    }

    pub(super) fn assign(&mut self, assignments: &[Arc<Assignment>]) {
        let fed =
            |assignment: &Arc<Assignment>| Fed { assignment: assignment.clone(), paused: false };
        self.partitions.extend(assignments.iter().map(fed));
        self.count_retries();
    }

    /// Removes partitions. Returns those that were paused.
    pub(super) fn revoke(&mut self, assignments: &[Arc<Assignment>]) -> Vec<Arc<Assignment>> {
        let is_one = |fed: &mut Fed| assignments.iter().any(|other| other.id == fed.assignment.id);
        let revoked = self.partitions.extract_if(.., is_one);
        let paused = revoked.filter(|fed| fed.paused).map(|fed| fed.assignment);
        let paused: Vec<_> = paused.collect();
        self.paused -= paused.len();
        self.count_retries();
        paused
    }

    fn count_retries(&mut self) {
        let is_retries = |fed: &&Fed| fed.assignment.rung.is_some();
        self.retries = self.partitions.iter().filter(is_retries).count();
    }

    pub(super) fn level(&self) -> f64 {
        self.total.total().level(self.budget)
    }

    /// Returns the fraction of the budget that outputs alone take.
    pub(super) fn outputs_level(&self) -> f64 {
        self.total.outputs().level(self.budget)
    }

    /// Returns how much may be read now, or `None` if nothing may be read.
    pub(super) fn room(&mut self) -> Option<Amount> {
        self.flow = self.flow.next(self.level(), self.start.elapsed());
        // A partition is paused only after it was read from. This limit keeps a single read from
        // filling the budget.
        let most = self.budget.part(ALLOWANCE);
        match self.flow {
            Flow::Open => self.total.total().left_of(self.budget).map(|room| room.at_most(most)),
            Flow::Full { .. } => None,
            // Partitions that are not paused share an allowance beyond the budget.
            Flow::Stalled => {
                let beyond = self.budget.part(1.0 + 2.0 * ALLOWANCE);
                let room = self.total.total().left_of(beyond)?;
                Some(room.at_most(self.budget.part(ALLOWANCE / self.partitions.len() as f64)))
            }
        }
    }

    /// Pauses and resumes partitions according to the flow. With `stop`, all partitions are paused.
    pub(super) fn pause_and_resume(&mut self, source: &mut impl Source, stop: bool) {
        // Below this level no partition needs a pause, and without paused partitions none needs a
        // resume.
        if !stop && self.paused == 0 && self.level() <= flow::calm(self.retries > 0) {
            return;
        }
        let count = self.partitions.len();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for fed in &mut self.partitions {
            let level = fed.assignment.usage.total().level(self.budget);
            let most = flow::most(fed.assignment.rung.as_ref().map(|_| self.retries));
            if !fed.paused && (stop || self.flow.pauses(level, most, count)) {
                fed.paused = true;
                pause.push(fed.assignment.clone());
            } else if fed.paused && !stop && self.flow.resumes(level, most, count) {
                fed.paused = false;
                resume.push(fed.assignment.clone());
            }
        }
        self.paused = self.paused + pause.len() - resume.len();
        if !pause.is_empty() {
            tracing::debug!(partitions = pause.len(), "pausing partitions");
            source.pause(&pause);
        }
        if !resume.is_empty() {
            tracing::debug!(partitions = resume.len(), "resuming partitions");
            source.resume(&resume);
        }
    }
}
