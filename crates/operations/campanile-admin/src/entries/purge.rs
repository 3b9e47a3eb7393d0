//! Deletes entries before their retention ends.

use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroUsize};
use std::pin::pin;
use std::time::Duration;

use campanile_core::{Entry, ExpireOutcome, State, StoreKey, expire};
use campanile_idempotency::{ExpireStore, Found, InspectStore};
use futures_util::future::{Either, select};
use serde::Serialize;

use super::list::DEFAULT_MAX_SHARE;
use super::{EntryPages, EntryQuery, EntryReport};
use crate::AdminError;
use crate::pacer::Pacer;

/// Deletes the entries that a query selects, to free memory or to forget a namespace. A later delivery
/// of a deleted key is processed as that of a new one.
///
/// Never deletes a locked entry, one that was granted within the last
/// [minute](campanile_core::limits::MIN_RETENTION), one that has changed since it was read, and a value
/// that cannot be read. Keeps no progress: the entries that are left are those of the next run.
#[derive(Clone, Debug)]
#[must_use]
pub struct Purge {
    query: EntryQuery,
    max_share: u8,
    rate: Option<NonZeroU32>,
}

/// What a [`Purge`] has deleted, or would delete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PurgeReport {
    /// Deleted entries that were PROCESSING, with an expired lock.
    pub processing: EntryCount,
    /// Deleted entries that were RETRYING.
    pub retrying: EntryCount,
    /// Deleted entries that were COMPLETED.
    pub completed: EntryCount,
    /// Deleted entries that were FAILED.
    pub failed: EntryCount,
    /// Selected entries that are kept, because they are locked or were granted within the last minute.
    pub kept: u64,
    /// Selected entries that are kept, because they were changed meanwhile, or are gone.
    pub changed: u64,
    /// Values that are no entries of this version, which are kept.
    pub unreadable: u64,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
}

/// A number of entries and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EntryCount {
    /// The number of entries.
    pub entries: u64,
    /// Their bytes, as an estimate: the encoded values, without their keys and what the store adds to
    /// each.
    pub bytes: u64,
}

impl Purge {
    /// Deletes the entries that this query selects.
    pub const fn new(query: EntryQuery) -> Self {
        Self { query, max_share: DEFAULT_MAX_SHARE, rate: None }
    }

    /// Sets the largest share of the store's time that reading the entries takes, in percent, as
    /// [`EntryPages::with_max_share`] does. Default: 5.
    pub const fn with_max_share(mut self, percent: u8) -> Self {
        self.max_share = percent;
        self
    }

    /// Limits the number of deleted entries per second. Default: no limit.
    pub const fn with_rate(mut self, rate: NonZeroU32) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Counts what a run would delete. Nothing is written, and the store is never blocked for long.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn preview(&self, store: &impl InspectStore) -> Result<PurgeReport, AdminError> {
        let mut report = PurgeReport::default();
        let mut pages = self.pages(store);
        while let Some(page) = pages.next().await? {
            for (_, entry) in report.select(page) {
                report.add(&entry);
            }
        }
        Ok(report)
    }

    /// Deletes the entries. `progress` is called with the report so far, after each page. If `stop`
    /// completes first, the run ends, and its report says so.
    ///
    /// # Errors
    /// Fails if the store does not answer, or if the user may not delete entries. Those of the last
    /// report are deleted, and perhaps others. Run it again for the rest.
    ///
    /// # Cancellation
    /// As after an error.
    pub async fn run<S: ExpireStore>(
        &self,
        store: &S,
        mut progress: impl FnMut(&PurgeReport),
        stop: impl Future,
    ) -> Result<PurgeReport, AdminError> {
        let mut stop = pin!(stop);
        let mut pacer = Pacer::new(self.rate);
        let mut report = PurgeReport::default();
        let mut pages = self.pages(store);
        let batch_len = self.batch_len(store.max_batch());
        loop {
            let Either::Right((page, _)) = select(&mut stop, pin!(pages.next())).await else {
                report.interrupted = true;
                return Ok(report);
            };
            let Some(page) = page? else {
                return Ok(report);
            };
            let selected = report.select(page);
            for batch in selected.chunks(batch_len) {
                let items = u32::try_from(batch.len()).unwrap_or(u32::MAX);
                let wait = pin!(pacer.wait(items));
                if let Either::Left(_) = select(&mut stop, wait).await {
                    report.interrupted = true;
                    return Ok(report);
                }
                let outcomes = store.expire(batch, Duration::ZERO).await;
                let outcomes = outcomes
                    .map_err(|error| AdminError::store("cannot delete the entries", error))?;
                for ((_, entry), outcome) in batch.iter().zip(outcomes) {
                    match outcome {
                        ExpireOutcome::Done => report.add(entry),
                        ExpireOutcome::Changed => report.changed += 1,
                        ExpireOutcome::Kept => report.kept += 1,
                    }
                }
            }
            progress(&report);
        }
    }

    fn pages<'a, S: InspectStore>(&self, store: &'a S) -> EntryPages<'a, S> {
        EntryPages::new(store, self.query.clone()).with_max_share(self.max_share)
    }

    /// With a rate, batches are small enough for several in a second.
    fn batch_len(&self, most: NonZeroUsize) -> usize {
        const BATCHES_PER_SECOND: u32 = 10;
        let of_rate = self.rate.map(|rate| rate.get().div_ceil(BATCHES_PER_SECOND));
        let of_rate = of_rate.and_then(|len| usize::try_from(len).ok());
        of_rate.map_or(most.get(), |len| len.min(most.get()))
    }
}

impl PurgeReport {
    /// Returns the number and size of all deleted entries.
    pub fn deleted(&self) -> EntryCount {
        let counts = [self.processing, self.retrying, self.completed, self.failed];
        EntryCount {
            entries: counts.iter().map(|count| count.entries).sum(),
            bytes: counts.iter().map(|count| count.bytes).sum(),
        }
    }

    /// Returns the entries that may be deleted, and counts the others.
    fn select(&mut self, page: Vec<EntryReport>) -> Vec<(StoreKey, Entry)> {
        let mut selected = Vec::with_capacity(page.len());
        for report in page {
            match report.found() {
                Found::Entry { entry, .. } => {
                    match expire(Some(entry), entry, Duration::ZERO, report.now()) {
                        ExpireOutcome::Done => selected.push((report.key().clone(), entry.clone())),
                        _ => self.kept += 1,
                    }
                }
                Found::Unreadable { .. } => self.unreadable += 1,
                _ => {}
            }
        }
        selected
    }

    fn add(&mut self, entry: &Entry) {
        let count = match entry.state() {
            State::Processing => &mut self.processing,
            State::Retrying => &mut self.retrying,
            State::Completed => &mut self.completed,
            State::Failed => &mut self.failed,
        };
        count.entries += 1;
        count.bytes += entry.to_bytes().len() as u64;
    }
}

impl fmt::Display for PurgeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>14}{:>16}", "state", "entries", "bytes")?;
        for (name, count) in [
            ("PROCESSING", self.processing),
            ("RETRYING", self.retrying),
            ("COMPLETED", self.completed),
            ("FAILED", self.failed),
            ("all", self.deleted()),
        ] {
            writeln!(f, "{name:<12}{:>14}{:>16}", count.entries, count.bytes)?;
        }
        let Self { kept, changed, unreadable, .. } = self;
        write!(
            f,
            "kept: {kept} locked or granted within the last minute, {changed} changed meanwhile, \
             {unreadable} unreadable\nbytes are an estimate: the encoded values, without their keys and \
             what the store adds to each"
        )
    }
}
