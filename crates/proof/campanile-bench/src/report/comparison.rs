//! Compares one of our contestants with another program, over the same topic.

use std::fmt;

use serde::Serialize;

use super::{Goal, Spread};
use crate::driver::measurement::Measurement;

/// Two contestants, measured in turns.
pub(crate) struct Comparison {
    pub(crate) row: &'static str,
    /// What distinguishes our contestant.
    pub(crate) contestant: &'static str,
    pub(crate) candidate: Vec<Measurement>,
    pub(crate) reference: (&'static str, Vec<Measurement>),
    pub(crate) goals: Goals,
}

/// Bounds on the medians.
#[derive(Clone, Copy, Default)]
pub(crate) struct Goals {
    /// Bound on the ratio of the rates.
    pub(crate) rate: Option<Goal>,
    /// Bound on the ratio of the processor times.
    pub(crate) cpu: Option<Goal>,
    /// Bound on our contestant's memory, in MiB.
    pub(crate) rss: Option<Goal>,
}

impl Comparison {
    fn ratios(&self, figure: fn(&Measurement) -> f64) -> Spread {
        let pairs = self.candidate.iter().zip(&self.reference.1);
        Spread::of(
            &pairs
                .map(|(candidate, reference)| figure(candidate) / figure(reference))
                .collect::<Vec<_>>(),
        )
    }

    fn candidate_medians(&self) -> Medians {
        Medians::of(&self.candidate)
    }

    fn reference_medians(&self) -> Medians {
        Medians::of(&self.reference.1)
    }

    fn all_ratio(&self) -> f64 {
        self.ratios(Measurement::all_us).median
    }

    fn cpu_ratio(&self) -> f64 {
        self.ratios(|measurement| measurement.cpu_us).median
    }

    /// Formats the JSON object of this comparison.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let (candidate, rate) = (self.candidate_medians(), self.ratios(Measurement::rate).median);
        serde_json::to_string(&ComparisonJson {
            area: "driver",
            name: self.row,
            contestant: self.contestant,
            against: self.reference.0,
            ratio: rate,
            goal: self.goals.rate,
            met: self.goals.rate.map(|goal| goal.is_met(rate)),
            all_ratio: self.all_ratio(),
            cpu_ratio: self.cpu_ratio(),
            cpu_goal: self.goals.cpu,
            cpu_met: self.goals.cpu.map(|goal| goal.is_met(self.cpu_ratio())),
            rss_goal: self.goals.rss,
            rss_met: self.goals.rss.map(|goal| goal.is_met(candidate.rss_mib)),
            ours: candidate,
            theirs: self.reference_medians(),
        })
    }
}

#[derive(Serialize)]
struct ComparisonJson {
    area: &'static str,
    name: &'static str,
    contestant: &'static str,
    against: &'static str,
    ratio: f64,
    goal: Option<Goal>,
    met: Option<bool>,
    /// Of the processor time of consumer, Redis and broker together.
    all_ratio: f64,
    cpu_ratio: f64,
    cpu_goal: Option<Goal>,
    cpu_met: Option<bool>,
    rss_goal: Option<Goal>,
    rss_met: Option<bool>,
    ours: Medians,
    theirs: Medians,
}

/// Medians over all rounds.
#[derive(Serialize)]
struct Medians {
    rate: f64,
    cpu_us: f64,
    redis_us: f64,
    broker_us: f64,
    wake_ups: f64,
    rss_mib: f64,
    records: f64,
    handled: f64,
    duplicates: f64,
    /// The maximum of any round, which should be zero.
    repeated: f64,
    reordered: f64,
}

impl Medians {
    fn of(measurements: &[Measurement]) -> Self {
        let spread = |figure: fn(&Measurement) -> f64| {
            Spread::of(&measurements.iter().map(figure).collect::<Vec<_>>())
        };
        Self {
            rate: spread(Measurement::rate).median,
            cpu_us: spread(|m| m.cpu_us).median,
            redis_us: spread(|m| m.redis_us).median,
            broker_us: spread(|m| m.broker_us).median,
            wake_ups: spread(|m| m.wake_ups).median,
            rss_mib: spread(|m| m.rss_mib).median,
            records: spread(|m| m.records as f64).median,
            handled: spread(|m| m.handled as f64).median,
            duplicates: spread(|m| m.duplicates as f64).median,
            repeated: spread(|m| m.repeated as f64).max,
            reordered: spread(|m| m.reordered as f64).max,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (candidate, reference, ratios) =
            (self.candidate_medians(), self.reference_medians(), self.ratios(Measurement::rate));
        let name = format!("{}, {}", self.row, self.contestant);
        write!(f, "driver {name:<46} {:>9.0} records/s", candidate.rate)?;
        write!(f, " {:>9.0} {:<36} ratio {ratios}", reference.rate, self.reference.0)?;
        write_outcome(f, self.goals.rate, ratios.median)?;
        write!(f, "\n       CPU us {:.1} / {:.1}", candidate.cpu_us, reference.cpu_us)?;
        write!(f, " = {:.2}", self.cpu_ratio())?;
        write_outcome(f, self.goals.cpu, self.cpu_ratio())?;
        write!(f, "; Redis {:.1} / {:.1}", candidate.redis_us, reference.redis_us)?;
        write!(f, ", broker {:.1} / {:.1}", candidate.broker_us, reference.broker_us)?;
        write!(f, ", together {:.2}", self.all_ratio())?;
        write!(f, "; wake-ups {:.2} / {:.2}", candidate.wake_ups, reference.wake_ups)?;
        write!(f, "; RSS over idle {:.0} / {:.0} MiB", candidate.rss_mib, reference.rss_mib)?;
        write_outcome(f, self.goals.rss, candidate.rss_mib)?;
        if candidate.handled + candidate.duplicates == 0.0 {
            return Ok(());
        }
        for (which, of) in [("ours", candidate), ("theirs", reference)] {
            write!(f, "; {which}: {} handled, {} duplicates", of.handled, of.duplicates)?;
            write!(f, ", {} repeated, {} reordered", of.repeated, of.reordered)?;
        }
        Ok(())
    }
}

fn write_outcome(f: &mut fmt::Formatter<'_>, goal: Option<Goal>, reached: f64) -> fmt::Result {
    match goal {
        Some(goal) if goal.is_met(reached) => write!(f, " (goal {goal}: met)"),
        Some(goal) => write!(f, " (goal {goal}: NOT MET)"),
        None => Ok(()),
    }
}
