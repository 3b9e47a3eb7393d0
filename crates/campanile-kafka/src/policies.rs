//! The user's settings, as the scheduler uses them.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Classify, Disposition};

use crate::dead_letter::Targets;
use crate::flood::FloodGuard;
use crate::given_up::Fate;
use crate::order::Order;
use crate::retention::Retentions;
use crate::retry_topics::{Ladder, Sources};

/// The settings of the scheduler.
pub(crate) struct Policies {
    pub(crate) order: Arc<Order>,
    /// How far ahead of a partition's oldest unfinished record other records may be started.
    pub(crate) far: u64,
    /// Whether a partition's first offset is committed before any of its records is finished.
    pub(crate) commits_start: bool,
    pub(crate) max_in_flight: usize,
    pub(crate) given_up: Fate,
    pub(crate) flood_guard: FloodGuard,
    pub(crate) stall: Duration,
    pub(crate) retentions: Retentions,
    pub(crate) targets: Targets,
    pub(crate) ladder: Option<Arc<Ladder>>,
    pub(crate) sources: Sources,
    pub(crate) classifiers: Classifiers,
}

/// The user's classifiers, in the order in which they were added.
pub(crate) struct Classifiers(pub(crate) Vec<Box<dyn Classify>>);

impl Classify for Classifiers {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        self.0.iter().find_map(|classifier| classifier.classify(error))
    }
}
