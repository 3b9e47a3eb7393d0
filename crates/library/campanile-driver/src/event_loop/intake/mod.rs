//! The intake: how much is read, and from which partitions. [`flow`] has the thresholds of the budget.

mod flow;

use std::sync::Arc;

use tokio::time::Instant;

use self::flow::{Flow, RESUME_LEVEL, STALL_ALLOWANCE};
use crate::event_loop::EventLoop;
use crate::source::{Amount, Assignment, Source, Usage};

impl<S: Source> EventLoop<S> {
    /// While what records have handed over fills the budget, restricts the scheduler to records that
    /// release it when they finish.
    pub(crate) fn check_held(&mut self) {
        if self.config.has_sinks {
            let threshold = if self.scheduler.held_full() { RESUME_LEVEL } else { 1.0 };
            self.scheduler.set_held_full(self.intake.held_level() >= threshold);
        }
    }
}

/// The budget and the partitions that share it.
pub(crate) struct Intake {
    budget: Amount,
    total: Arc<Usage>,
    flow: Flow,
    start: Instant,
    partitions: Vec<IntakePartition>,
    /// The number of paused partitions.
    paused: usize,
    /// The number of partitions with a delay.
    delayed_partitions: usize,
}

/// An assigned partition.
struct IntakePartition {
    assignment: Arc<Assignment>,
    paused: bool,
}

impl Intake {
    pub(crate) fn new(budget: Amount, total: Arc<Usage>) -> Self {
        let (flow, start, partitions) = (Flow::Open, Instant::now(), Vec::new());
        Self { budget, total, flow, start, partitions, paused: 0, delayed_partitions: 0 }
    }

    pub(crate) fn assign(&mut self, assignments: &[Arc<Assignment>]) {
        let partition = |assignment: &Arc<Assignment>| IntakePartition {
            assignment: assignment.clone(),
            paused: false,
        };
        self.partitions.extend(assignments.iter().map(partition));
        self.count_delayed_partitions();
    }

    /// Removes partitions. Returns those that were paused.
    pub(crate) fn revoke(&mut self, assignments: &[Arc<Assignment>]) -> Vec<Arc<Assignment>> {
        let is_one = |partition: &mut IntakePartition| {
            assignments.iter().any(|other| other.id == partition.assignment.id)
        };
        let revoked = self.partitions.extract_if(.., is_one);
        let paused =
            revoked.filter(|partition| partition.paused).map(|partition| partition.assignment);
        let paused: Vec<_> = paused.collect();
        self.paused -= paused.len();
        self.count_delayed_partitions();
        paused
    }

    /// Stops reading a partition that was stopped at a record.
    pub(crate) fn stop(&mut self, assignment: &Arc<Assignment>, source: &mut impl Source) {
        let is_it = |partition: &&mut IntakePartition| partition.assignment.id == assignment.id;
        if let Some(partition) = self.partitions.iter_mut().find(is_it)
            && !std::mem::replace(&mut partition.paused, true)
        {
            self.paused += 1;
            source.pause(std::slice::from_ref(assignment));
        }
    }

    fn count_delayed_partitions(&mut self) {
        let is_delayed = |partition: &&IntakePartition| partition.assignment.delay.is_some();
        self.delayed_partitions = self.partitions.iter().filter(is_delayed).count();
    }

    /// Reads how much all partitions have in memory.
    pub(crate) fn total(&self) -> Amount {
        self.total.total()
    }

    pub(crate) fn level(&self) -> f64 {
        self.total().level(self.budget)
    }

    pub(crate) fn held_level(&self) -> f64 {
        self.total.held().level(self.budget)
    }

    /// Computes how much may be read now, or `None` if nothing may be read.
    pub(crate) fn room(&mut self) -> Option<Amount> {
        self.flow = self.flow.next(self.level(), self.start.elapsed());
        // A partition is paused only after it was read from. This limit keeps a single read from
        // filling the budget.
        let max_read = self.budget.fraction(STALL_ALLOWANCE);
        match self.flow {
            Flow::Open => self.total().remaining_of(self.budget).map(|room| room.at_most(max_read)),
            Flow::Full { .. } => None,
            // Partitions that are not paused share an allowance beyond the budget.
            Flow::Stalled => {
                let beyond = self.budget.fraction(1.0 + 2.0 * STALL_ALLOWANCE);
                let room = self.total().remaining_of(beyond)?;
                Some(
                    room.at_most(
                        self.budget.fraction(STALL_ALLOWANCE / self.partitions.len() as f64),
                    ),
                )
            }
        }
    }

    /// Pauses and resumes partitions according to the flow. With `stop`, all partitions are paused.
    ///
    /// Partitions that are paused through a handle are still read while the level is low. Above it, they
    /// leave the rest of the budget to the others.
    pub(crate) fn pause_and_resume(&mut self, source: &mut impl Source, stop: bool) {
        // Below this level no partition needs a pause, and without paused partitions none needs a
        // resume.
        if !stop
            && self.paused == 0
            && self.level() <= flow::pause_free_level(self.delayed_partitions > 0)
        {
            return;
        }
        let count = self.partitions.len();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for partition in &mut self.partitions {
            let level = partition.assignment.usage.total().level(self.budget);
            // A partition that waits for its start position would be resumed there.
            let stop = stop || (partition.assignment.is_paused() && level > 0.0);
            let limit =
                flow::share_limit(partition.assignment.delay.map(|_| self.delayed_partitions));
            if !partition.paused && (stop || self.flow.should_pause(level, limit, count)) {
                partition.paused = true;
                pause.push(partition.assignment.clone());
            } else if partition.paused
                && !stop
                && !partition.assignment.is_stopped()
                && self.flow.should_resume(level, limit, count)
            {
                partition.paused = false;
                resume.push(partition.assignment.clone());
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
