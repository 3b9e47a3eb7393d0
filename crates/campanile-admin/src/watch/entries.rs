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

/// The number of entries by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
    /// How long the count took, in seconds. It is shown until the next one has ended.
    pub seconds: f64,
    /// Why the last count failed. The numbers are then those of an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Starts to count, until the receiver is dropped. `None` until the first count has ended.
pub(super) fn count<S: InspectStore>(
    store: S,
    namespace: Namespace,
) -> Receiver<Option<EntryCounts>> {
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
            sender.send_modify(|last| match counted {
                Ok(stats) => {
                    *last = Some(EntryCounts {
                        processing: stats.processing.entries,
                        stuck: stats.stuck,
                        retrying: stats.retrying.entries,
                        completed: stats.completed.entries,
                        failed: stats.failed.entries,
                        seconds: took.as_secs_f64(),
                        error: None,
                    });
                }
                Err(error) => {
                    last.get_or_insert_default().error = Some(chain(&error));
                }
            });
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
