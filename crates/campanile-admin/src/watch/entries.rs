//! Counts the entries of a namespace again and again.

use std::time::Duration;

use campanile_core::{Clock, Namespace};
use campanile_idempotency::InspectStore;
use serde::Serialize;
use tokio::sync::watch::{self, Receiver};
use tokio::time::sleep;

use crate::entries::{EntryPages, EntryQuery, EntryStats};
use crate::error::chain;

/// The pause between two counts. Each takes a small share of the store's time.
const PAUSE: Duration = Duration::from_secs(1);

/// The entries of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum EntriesView {
    /// The last count.
    Counted(EntryCounts),
    /// The last count failed.
    Failed {
        /// Why.
        error: String,
    },
}

/// The number of entries by state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EntryCounts {
    /// PROCESSING, including the stuck ones: keys in flight.
    pub processing: u64,
    /// PROCESSING with an expired lock.
    pub stuck: u64,
    /// RETRYING.
    pub retrying: u64,
    /// COMPLETED.
    pub completed: u64,
    /// FAILED.
    pub failed: u64,
    /// Values that are no entries of this version.
    pub unreadable: u64,
    /// How long the count took, in seconds. It is shown until the next one has ended.
    pub seconds: f64,
}

/// Starts to count, until the receiver is dropped. `None` until the first count has ended.
pub(super) fn count<S: InspectStore>(
    store: S,
    namespace: Namespace,
) -> Receiver<Option<EntriesView>> {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let (clock, query) = (Clock::boot(), EntryQuery::new(namespace));
        loop {
            let start = clock.now();
            let counted = tokio::select! {
                counted = EntryStats::count(EntryPages::new(&store, query.clone())) => counted,
                () = sender.closed() => return,
            };
            let took = clock.now() - start;
            sender.send_replace(Some(match counted {
                Ok(stats) => EntriesView::Counted(EntryCounts {
                    processing: stats.processing.entries,
                    stuck: stats.stuck,
                    retrying: stats.retrying.entries,
                    completed: stats.completed.entries,
                    failed: stats.failed.entries,
                    unreadable: stats.unreadable,
                    seconds: took.as_secs_f64(),
                }),
                Err(error) => EntriesView::Failed { error: chain(&error) },
            }));
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
