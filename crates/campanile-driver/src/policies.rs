//! The user's settings, as the scheduler uses them.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Classify, Coordinates, Disposition};

use crate::driver::Epilogue;
use crate::flood_limit::FloodLimit;
use crate::give_up::GiveUpAction;
use crate::order::ProcessingOrder;

/// The settings of the scheduler.
pub struct Policies {
    pub order: Arc<ProcessingOrder>,
    /// How far ahead of a partition's oldest unfinished record other records may be started.
    pub max_ahead: u64,
    /// Whether a partition's first offset is committed before any of its records is finished.
    pub commits_start_offset: bool,
    pub max_in_flight: usize,
    pub given_up: GiveUpAction,
    /// Records that are skipped without an attempt.
    pub skip_at: HashSet<Coordinates>,
    pub flood_limit: FloodLimit,
    pub stall_warning: Duration,
    pub epilogue: Arc<dyn Epilogue>,
    pub classifiers: Classifiers,
}

/// The user's classifiers, in the order in which they were added.
pub struct Classifiers(pub Vec<Box<dyn Classify>>);

impl Classify for Classifiers {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        self.0.iter().find_map(|classifier| classifier.classify(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_classifier_with_an_answer_takes_precedence() {
        let answer = |answer: Option<Disposition>| -> Box<dyn Classify> {
            Box::new(move |_: &(dyn Error + 'static)| answer)
        };
        let classifiers = Classifiers(vec![
            answer(None),
            answer(Some(Disposition::Skip)),
            answer(Some(Disposition::Stop)),
        ]);
        assert_eq!(classifiers.classify(&std::fmt::Error), Some(Disposition::Skip));
    }
}
