//! Lists entries.

use std::time::Duration;

use campanile_core::{Namespace, State};
use campanile_idempotency::{InspectStore, ScanCursor, ScanFilter};
use tokio::time::{Instant, sleep_until};

use super::EntryReport;
use crate::AdminError;

/// Selects entries. Values that cannot be read are always selected, because nothing is known of them.
#[derive(Clone, Debug)]
#[must_use]
pub struct EntryQuery {
    filter: ScanFilter,
    /// In addition to the states of the filter, which includes PROCESSING for it.
    stuck: bool,
    processing: bool,
    max_age: Option<Duration>,
    error: Option<Box<str>>,
}

impl EntryQuery {
    /// Selects all entries of a namespace.
    pub const fn new(namespace: Namespace) -> Self {
        let filter = ScanFilter::new(namespace);
        Self { filter, stuck: false, processing: false, max_age: None, error: None }
    }

    /// Selects only entries in this state. If it is called several times, the states add up.
    pub fn with_state(mut self, state: State) -> Self {
        self.filter = self.filter.with_state(state);
        self.processing |= state == State::Processing;
        self
    }

    /// Selects only entries that are [stuck](EntryReport::is_stuck), in addition to those in the
    /// [states](Self::with_state) that are selected.
    pub fn with_stuck(mut self) -> Self {
        self.filter = self.filter.with_state(State::Processing);
        self.stuck = true;
        self
    }

    /// Selects only entries of at least this [age](EntryReport::age).
    pub fn with_min_age(mut self, age: Duration) -> Self {
        self.filter = self.filter.with_min_age(age);
        self
    }

    /// Selects only entries of at most this [age](EntryReport::age).
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Selects only entries with this text in their last error.
    pub fn with_error(mut self, text: impl Into<Box<str>>) -> Self {
        self.error = Some(text.into());
        self
    }

    fn matches(&self, report: &EntryReport) -> bool {
        let Some((entry, age)) = report.entry().zip(report.age()) else {
            return true;
        };
        // The filter compares the creation only.
        if age < self.filter.min_age() || self.max_age.is_some_and(|most| age > most) {
            return false;
        }
        let contains = |text: &str| entry.error().is_some_and(|error| error.contains(text));
        let only_stuck = self.stuck && !self.processing;
        !(only_stuck && report.is_locked()) && self.error.as_deref().is_none_or(contains)
    }
}

/// The share of the store's time that a scan takes, unless another is set, in percent. It leaves the
/// store to the application.
pub(super) const DEFAULT_MAX_SHARE: u8 = 5;

/// The entries that a query selects, in pages and in no particular order. Nothing is written, and the
/// store is never blocked for long.
///
/// An entry that exists all the time is listed at least once, and may be listed twice.
#[derive(Debug)]
pub struct EntryPages<'a, S> {
    store: &'a S,
    query: EntryQuery,
    max_share: u8,
    /// `None` at the end.
    cursor: Option<ScanCursor>,
    /// When the next page may be read.
    resume_at: Instant,
}

impl<'a, S: InspectStore> EntryPages<'a, S> {
    /// Starts a list.
    pub fn new(store: &'a S, query: EntryQuery) -> Self {
        let (cursor, resume_at) = (Some(ScanCursor::default()), Instant::now());
        Self { store, query, max_share: DEFAULT_MAX_SHARE, cursor, resume_at }
    }

    /// Sets the largest share of the store's time that the list takes, in percent from 1 to 100. After
    /// each page, the list waits in proportion to the time that the page took the store.
    ///
    /// Default: 5, so that the application is not slowed down. With 100, there are no waits.
    #[must_use]
    pub fn with_max_share(self, percent: u8) -> Self {
        Self { max_share: percent.clamp(1, 100), ..self }
    }

    /// Reads the next page. It may be empty although others follow. `None` at the end. Must be called on
    /// a Tokio runtime with timers.
    ///
    /// # Errors
    /// Fails if the store does not answer. The same page can then be read again.
    ///
    /// # Cancellation
    /// The same page is read again.
    pub async fn next(&mut self) -> Result<Option<Vec<EntryReport>>, AdminError> {
        let Some(cursor) = &self.cursor else {
            return Ok(None);
        };
        // A timer ends up to a millisecond late, which is as long as a page takes.
        if self.resume_at > Instant::now() {
            sleep_until(self.resume_at).await;
        }
        let start = Instant::now();
        let page = self.store.scan(&self.query.filter, cursor).await;
        // The clock of a store may step.
        let elapsed = start.elapsed();
        let page = page.map_err(|error| AdminError::store("cannot list the entries", error))?;
        let share = u32::from(self.max_share);
        self.resume_at = Instant::now() + page.busy.min(elapsed) * (100 - share) / share;
        self.cursor = page.next;
        let reports = page.entries.into_iter();
        let reports = reports.map(|(key, found)| EntryReport::new(key, page.now, found));
        Ok(Some(reports.filter(|report| self.query.matches(report)).collect()))
    }
}
