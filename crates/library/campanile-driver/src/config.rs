//! The settings of a driver.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Classify, Disposition};
use tracing::Level;

use crate::epilogue::{Epilogue, GiveUpAction, NoEpilogue};
use crate::flood_limit::FloodLimit;
use crate::order::ProcessingOrder;
use crate::skip_at::SkipAt;
use crate::source::Amount;

/// The settings of a [`Driver`](crate::Driver).
pub struct DriverConfig {
    /// The consumer group, as spans and metrics name it.
    pub group: Arc<str>,
    /// Which records are processed one after the other. Default: those of a partition.
    pub order: ProcessingOrder,
    /// How much is kept in memory, and how far ahead of a partition's oldest unfinished record others may be
    /// started. Default: 20 000 records and 32 MiB, because more does not increase throughput.
    pub budget: Amount,
    /// How many records may be in flight. Default: 256, enough to keep a store's batches full.
    pub max_in_flight: usize,
    /// How long records in flight may take to finish at a shutdown. Default: 10 s, longer than most handlers
    /// take, and well below the 30 s after which orchestrators kill a process.
    pub drain_timeout: Duration,
    /// The same for records of a partition that is revoked, when the whole group may have to wait. Default:
    /// 10 s.
    pub revoke_timeout: Duration,
    /// How often changed offsets are committed. A crash replays at most the records that finished within
    /// this time, as duplicates. Default: 200 ms.
    pub commit_interval: Duration,
    /// Whether a partition's first offset is committed before any of its records is finished. Default: no.
    pub commits_start_offset: bool,
    /// Whether records hand over what is committed with their offsets. Default: no.
    pub has_sinks: bool,
    /// When a partition with an old unfinished record is logged. Default: 60 s, because most handlers have
    /// finished by then.
    pub stall_warning: Duration,
    /// What happens to a record that is given up. Default: the consumer stops.
    pub give_up: GiveUpAction,
    /// Records that are skipped without an attempt, with the ids of their topics if these are named.
    pub skip_at: Vec<SkipAt>,
    /// How many records may be handed over before the consumer pauses. Default: disabled.
    pub flood_limit: FloodLimit,
    /// Takes over records that were not processed. Default: none does.
    pub epilogue: Arc<dyn Epilogue>,
    /// The dispositions of errors, before the default ones.
    pub classifiers: Classifiers,
    /// The level of the span of an attempt. Default: DEBUG, because an enabled span for each record is
    /// expensive.
    pub span_level: Level,
}

impl DriverConfig {
    /// Creates the default settings for a consumer in this group.
    pub fn new(group: impl Into<Arc<str>>) -> Self {
        Self {
            group: group.into(),
            order: ProcessingOrder::default(),
            budget: Amount { records: 20_000, bytes: 32 * 1024 * 1024 },
            max_in_flight: 256,
            drain_timeout: Duration::from_secs(10),
            revoke_timeout: Duration::from_secs(10),
            commit_interval: Duration::from_millis(200),
            commits_start_offset: false,
            has_sinks: false,
            stall_warning: Duration::from_secs(60),
            give_up: GiveUpAction::Stop,
            skip_at: Vec::new(),
            flood_limit: FloodLimit::disabled(),
            epilogue: Arc::new(NoEpilogue),
            classifiers: Classifiers::default(),
            span_level: Level::DEBUG,
        }
    }
}

impl fmt::Debug for DriverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverConfig").field("group", &self.group).finish_non_exhaustive()
    }
}

/// The user's classifiers. The first one with an answer takes precedence.
#[derive(Default)]
pub struct Classifiers(Vec<Box<dyn Classify>>);

impl Classifiers {
    /// Adds a classifier, which is asked after those that were added before.
    pub fn push(&mut self, classifier: impl Classify) {
        self.0.push(Box::new(classifier));
    }
}

impl Classify for Classifiers {
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<Disposition> {
        self.0.iter().find_map(|classifier| classifier.classify(error))
    }
}

impl fmt::Debug for Classifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classifiers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_classifier_with_an_answer_takes_precedence() {
        let mut classifiers = Classifiers::default();
        for answer in [None, Some(Disposition::Skip), Some(Disposition::Stop)] {
            classifiers.push(move |_: &(dyn Error + 'static)| answer);
        }
        assert_eq!(classifiers.classify(&std::fmt::Error), Some(Disposition::Skip));
    }
}
