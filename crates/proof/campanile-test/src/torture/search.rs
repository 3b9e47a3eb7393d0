//! The search for the smallest situation that fails.

use fastrand::Rng;

use super::delivery::Phase;
use super::fault::{self, Fault};
use super::report::{Failure, Report};
use super::trial::Observed;

/// Runs a situation, after what was observed without faults. If it fails, returns its story.
type RunTrial<'a> = &'a dyn Fn(&[Fault], &[Observed]) -> Result<Vec<Observed>, String>;

/// Tries the situations one after the other, the simplest first.
pub(super) struct Search<'a> {
    trial: RunTrial<'a>,
    /// What happens without faults. Empty until this is known.
    observed: Vec<Observed>,
    report: Report,
    /// The number of situations with two faults.
    pairs: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(trial: RunTrial<'a>, seed: u64, pairs: usize) -> Self {
        let report = Report { awaits: 0, situations: 0, seed };
        Self { trial, observed: Vec::new(), report, pairs }
    }

    pub(super) fn run(mut self) -> Result<Report, Failure> {
        match self.find_failure() {
            Ok(()) => Ok(self.report),
            Err(story) => Err(Failure { story, report: self.report }),
        }
    }

    fn find_failure(&mut self) -> Result<(), String> {
        self.observed = self.try_faults(&[])?;
        let attempts = self.observed.iter().filter_map(|record| record.attempts.get(&1));
        if attempts.clone().all(|attempt| attempt.calls == 0) {
            return Err("without a fault: no lock was acquired; create the layer over the keeper \
                        that the second function gets"
                .to_owned());
        }
        let awaits = attempts.flat_map(|attempt| &attempt.awaits);
        self.report.awaits = awaits.filter(|it| it.phase == Phase::Running).count();
        let firsts = fault::possible(&self.observed, None);
        let mut pairs = Vec::new();
        for &first in &firsts {
            let observed = self.try_faults(&[first])?;
            let seconds = fault::possible(&observed, Some(first));
            if !seconds.is_empty() {
                pairs.push((first, seconds));
            }
        }
        let mut rng = Rng::with_seed(self.report.seed);
        for _ in 0..self.pairs {
            let Some((first, seconds)) = rng.choice(&pairs) else { break };
            let pair = [*first, seconds[rng.usize(..seconds.len())]];
            self.try_faults(&pair).map_err(|story| self.shrink([&firsts, seconds], pair, story))?;
        }
        Ok(())
    }

    fn try_faults(&mut self, faults: &[Fault]) -> Result<Vec<Observed>, String> {
        self.report.situations += 1;
        (self.trial)(faults, &self.observed)
    }

    /// Replaces each of both faults by the simplest of its candidates with which the situation fails. Both
    /// are needed, because no single fault has failed.
    fn shrink(
        &mut self,
        candidates: [&[Fault]; 2],
        mut pair: [Fault; 2],
        mut story: String,
    ) -> String {
        for (index, candidates) in candidates.into_iter().enumerate() {
            for &simpler in candidates {
                if simpler == pair[index] {
                    break;
                }
                let mut simpler_pair = pair;
                simpler_pair[index] = simpler;
                if let Err(simpler_story) = self.try_faults(&simpler_pair) {
                    (pair, story) = (simpler_pair, simpler_story);
                    break;
                }
            }
        }
        story
    }
}
