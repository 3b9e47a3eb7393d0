//! Compares the driver with handwritten consumers, on the same real topics.
//!
//! Each contestant runs in its own process, so that its processor time, wake-ups and memory are
//! measured separately. Contestants of one comparison take turns.

mod awake;
mod baseline;
mod child;
mod counters;
mod latency;
mod ledger;
mod loops;
pub(crate) mod measurement;
mod no_op;
mod product;
mod rows;
mod runner;
mod sleeping;
mod slow_partition;
mod task;
mod timing;
mod topic;
pub(crate) mod usage;

use std::time::Duration;

use campanile::BoxError;

pub(crate) use self::child::{CONTESTANT, run_contestant};
pub(crate) use self::loops::run as run_loops;
use self::rows::ROWS;
use self::runner::Runner;
use crate::report::Report;

/// Which rows to run, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Names of rows, or prefixes that end before a `-`; all rows if empty.
    pub(crate) only: Vec<String>,
    /// Number of runs of each contestant.
    pub(crate) rounds: usize,
    /// Time limit of each run.
    pub(crate) limit: Duration,
    /// Whether the processors are kept from sleeping.
    pub(crate) awake: bool,
    /// Whether long rows run at full size.
    pub(crate) full: bool,
}

impl Default for Options {
    fn default() -> Self {
        let limit = Duration::from_secs(3);
        Self { only: Vec::new(), rounds: 3, limit, awake: false, full: false }
    }
}

impl Options {
    /// Chooses among rows with these names.
    ///
    /// # Errors
    /// Fails if none is chosen.
    pub(crate) fn choose<'a, T>(
        &self,
        rows: &'a [(&'static str, T)],
    ) -> Result<Vec<&'a T>, BoxError> {
        let chosen = rows.iter().filter(|(name, _)| self.has(name));
        let chosen: Vec<_> = chosen.map(|(_, row)| row).collect();
        if chosen.is_empty() {
            let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
            return Err(format!("no such row; the rows are {}", names.join(", ")).into());
        }
        Ok(chosen)
    }

    fn has(&self, row: &str) -> bool {
        let is = |only: &String| {
            row.strip_prefix(&**only).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        self.only.is_empty() || self.only.iter().any(is)
    }
}

pub(crate) fn run(report: &mut Report, options: Options) -> Result<(), BoxError> {
    let chosen = options.choose(&ROWS)?;
    let mut runner = Runner::start(options)?;
    for row in chosen {
        row(report, &mut runner)?;
    }
    Ok(())
}

fn per_second(records: u64, took: Duration) -> f64 {
    records as f64 / took.as_secs_f64()
}
