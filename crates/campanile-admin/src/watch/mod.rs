//! Observes a running consumer group: its lag, what is in flight, and its outcomes.
//!
//! A [`Watch`] is started on Kafka, and a [`Watcher`] then takes a [`Snapshot`] whenever it is asked.
//! Joins no group, commits nothing and writes nothing.

mod entries;
mod exposition;
#[cfg(test)]
mod fuzz;
mod kafka;
mod metrics;
mod snapshot;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Clock, ConfigError, Namespace};
use campanile_idempotency::InspectStore;
use futures_util::future::join_all;
use http::Uri;
use rdkafka::ClientConfig;
use tokio::sync::watch::Receiver;

pub use self::entries::{EntriesView, EntryCounts};
use self::kafka::{GroupLook, Reader};
use self::metrics::{ProcessLook, Scraper};
pub use self::snapshot::{PartitionView, ProcessView, Snapshot};
use crate::AdminError;
use crate::time::system_time;

/// What to observe.
#[derive(Clone, Debug)]
#[must_use]
pub struct Watch {
    group: String,
    topics: Vec<String>,
    metrics: Vec<Uri>,
    timeout: Duration,
}

impl Watch {
    /// Observes a consumer group.
    pub fn new(group: impl Into<String>) -> Self {
        let timeout = Duration::from_secs(10);
        Self { group: group.into(), topics: Vec::new(), metrics: Vec::new(), timeout }
    }

    /// Observes only this topic. If it is called several times, the topics add up. Default: all topics
    /// of which the group has committed an offset or has a member with a partition. The brokers are
    /// then asked for all topics that the user may see.
    pub fn with_topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Adds a process of the application: the URL of its endpoint for Prometheus, such as
    /// `http://10.0.0.7:9000/metrics`.
    ///
    /// # Errors
    /// Fails if the URL is not one of HTTP, or has a user or a password.
    pub fn with_metrics(mut self, url: &str) -> Result<Self, ConfigError> {
        self.metrics.push(metrics::parse_url(url)?);
        Ok(self)
    }

    /// Sets how long to wait for an answer of the brokers or of a process. Default: 10 s.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Starts to observe.
    ///
    /// # Errors
    /// Fails if a setting of Kafka is wrong. Nothing is asked yet.
    pub fn start(self, kafka: &ClientConfig) -> Result<Watcher, AdminError> {
        let reader = Reader::new(kafka, &self.group, &self.topics, self.timeout)?;
        Ok(Watcher {
            reader: Arc::new(reader),
            scraper: Scraper::new(self.timeout),
            clock: Clock::boot(),
            entries: None,
            last: None,
            settings: self,
        })
    }
}

/// Takes snapshots of a group.
pub struct Watcher {
    settings: Watch,
    reader: Arc<Reader>,
    scraper: Scraper,
    clock: Clock,
    entries: Option<Receiver<Option<EntriesView>>>,
    last: Option<Look>,
}

/// What was seen at one time.
struct Look {
    at: Duration,
    group: GroupLook,
    /// In the order of the URLs.
    processes: Vec<Result<ProcessLook, String>>,
}

impl Watcher {
    /// Starts to count the entries of a namespace in the background. A count reads all of them, in
    /// slices, and takes at most 5 % of the store's time.
    pub fn count_entries(&mut self, store: impl InspectStore, namespace: Namespace) {
        self.entries = Some(entries::count(store, namespace));
    }

    /// Waits until the entries have been counted once, if they are counted.
    pub async fn entries_counted(&mut self) {
        if let Some(entries) = &mut self.entries {
            // The sender is not dropped before.
            let _ = entries.wait_for(Option::is_some).await;
        }
    }

    /// Takes a snapshot. Rates are those since the last one.
    ///
    /// A process that does not answer is no error: see [`ProcessView::error`].
    ///
    /// # Errors
    /// Fails if the brokers do not answer, or if there is no such topic. The next call asks again.
    pub async fn snapshot(&mut self) -> Result<Snapshot, AdminError> {
        let reader = Arc::clone(&self.reader);
        let group = tokio::task::spawn_blocking(move || reader.look());
        let urls = &self.settings.metrics;
        let processes = urls.iter().map(|url| self.scraper.look(url, &self.settings.group));
        let (group, processes) = tokio::join!(group, join_all(processes));
        let group =
            group.map_err(|error| AdminError::unavailable("cannot read the group", error))??;
        let look = Look { at: self.clock.now(), group, processes };
        let entries = self.entries.as_ref().and_then(|entries| entries.borrow().clone());
        let snapshot =
            Snapshot::new(&self.settings, system_time(), &look, self.last.as_ref(), entries);
        self.last = Some(look);
        Ok(snapshot)
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("settings", &self.settings).finish_non_exhaustive()
    }
}
