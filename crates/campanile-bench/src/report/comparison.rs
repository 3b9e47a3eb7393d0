//! Compares one of our contestants with another program, over the same topic.

use std::fmt;

use serde::Serialize;

use super::{Goal, Spread};
use crate::driver::measured::Measured;

/// Two contestants, measured in turns.
pub(crate) struct Comparison {
    pub(crate) row: &'static str,
    /// What distinguishes our contestant.
    pub(crate) contestant: &'static str,
    pub(crate) ours: Vec<Measured>,
    pub(crate) against: (&'static str, Vec<Measured>),
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
    fn ratios(&self, figure: fn(&Measured) -> f64) -> Spread {
        let pairs = self.ours.iter().zip(&self.against.1);
        Spread::of(&pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)).collect::<Vec<_>>())
    }

    fn ours(&self) -> Medians {
        Medians::of(&self.ours)
    }

    fn theirs(&self) -> Medians {
        Medians::of(&self.against.1)
    }

    fn cpu_ratio(&self) -> f64 {
        self.ratios(|measured| measured.cpu_us).median
    }

    /// Formats the JSON object of this comparison.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let (ours, rate) = (self.ours(), self.ratios(Measured::rate).median);
        serde_json::to_string(&Json {
            area: "driver",
            name: self.row,
            contestant: self.contestant,
            against: self.against.0,
            ratio: rate,
            goal: self.goals.rate,
            met: self.goals.rate.map(|goal| goal.met(rate)),
            cpu_ratio: self.cpu_ratio(),
            cpu_goal: self.goals.cpu,
            cpu_met: self.goals.cpu.map(|goal| goal.met(self.cpu_ratio())),
            rss_goal: self.goals.rss,
            rss_met: self.goals.rss.map(|goal| goal.met(ours.rss_mib)),
            ours,
            theirs: self.theirs(),
        })
    }
}

#[derive(Serialize)]
struct Json {
    area: &'static str,
    name: &'static str,
    contestant: &'static str,
    against: &'static str,
    ratio: f64,
    goal: Option<Goal>,
    met: Option<bool>,
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
    fn of(measured: &[Measured]) -> Self {
        let spread = |figure: fn(&Measured) -> f64| {
            Spread::of(&measured.iter().map(figure).collect::<Vec<_>>())
        };
        Self {
            rate: spread(Measured::rate).median,
            cpu_us: spread(|m| m.cpu_us).median,
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
        let (ours, theirs, ratios) = (self.ours(), self.theirs(), self.ratios(Measured::rate));
        let name = format!("{}, {}", self.row, self.contestant);
        write!(f, "driver {name:<46} {:>9.0} records/s", ours.rate)?;
        write!(f, " {:>9.0} {:<36} ratio {ratios}", theirs.rate, self.against.0)?;
        outcome(f, self.goals.rate, ratios.median)?;
        write!(f, "\n       CPU us {:.1} / {:.1}", ours.cpu_us, theirs.cpu_us)?;
        write!(f, " = {:.2}", self.cpu_ratio())?;
        outcome(f, self.goals.cpu, self.cpu_ratio())?;
        write!(f, "; wake-ups {:.2} / {:.2}", ours.wake_ups, theirs.wake_ups)?;
        write!(f, "; RSS over idle {:.0} / {:.0} MiB", ours.rss_mib, theirs.rss_mib)?;
        outcome(f, self.goals.rss, ours.rss_mib)?;
        if ours.handled + ours.duplicates == 0.0 {
            return Ok(());
        }
        for (which, of) in [("ours", ours), ("theirs", theirs)] {
            write!(f, "; {which}: {} handled, {} duplicates", of.handled, of.duplicates)?;
            write!(f, ", {} repeated, {} reordered", of.repeated, of.reordered)?;
        }
        Ok(())
    }
}

fn outcome(f: &mut fmt::Formatter<'_>, goal: Option<Goal>, reached: f64) -> fmt::Result {
    match goal {
        Some(goal) if goal.met(reached) => write!(f, " (goal {goal}: met)"),
        Some(goal) => write!(f, " (goal {goal}: NOT MET)"),
        None => Ok(()),
    }
}
