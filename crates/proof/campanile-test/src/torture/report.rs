//! The results of a torture.

use std::error::Error;
use std::fmt;

/// What was tried. `Display` prints it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The number of awaits of the handlers in a run without faults, over all records: at each of them,
    /// the handler was stopped. A handler that is a fake throughout has none, unless it contains
    /// [points](super::point()).
    pub awaits: usize,
    /// The number of situations: one without a fault, those with one fault, and those with two.
    pub situations: usize,
    /// The seed of the situations with two faults.
    pub seed: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { awaits, situations, seed } = self;
        write!(f, "{situations} situations, awaits of handlers: {awaits}, seed: {seed}")
    }
}

/// The smallest situation in which the check failed.
///
/// `Debug` prints the same text as `Display`, so that the output stays readable when a test unwraps the
/// error.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// What happened, and the error of the check: "dropped at await 2 of attempt 1 (charged), then
    /// delivered again: 2 charges of p-1, expected 1".
    pub story: String,
    /// What was tried until then.
    pub report: Report,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.story, self.report)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Failure {}
