//! Brings dead letters back: reopens their keys, and produces their records to their topics again.
//!
//! ```no_run
//! use campanile_admin::StoreConfig;
//! use campanile_admin::redrive::Redrive;
//! use rdkafka::ClientConfig;
//!
//! # async fn run() -> Result<(), campanile_core::BoxError> {
//! let mut kafka = ClientConfig::new();
//! kafka.set("bootstrap.servers", "127.0.0.1:9092");
//! let store = "redis://127.0.0.1:6379".parse::<StoreConfig>()?.connect().await?;
//! let summary = Redrive::new("payments.dead")
//!     .with_max(100)
//!     .run(&kafka, &store, &mut (), std::future::pending::<()>())
//!     .await?;
//! println!("{} records are back in their topics", summary.reopened + summary.produced);
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! * [`Redrive`] has the settings, and starts a run or a preview.
//! * `source` reads the letters and commits their offsets, `letter` decides what a letter alone can
//!   decide, `decide` asks for its topic and the store, `reopen` reads and reopens keys, `sink`
//!   produces, and `run` puts them in order.

mod decide;
mod filter;
mod letter;
mod preview;
mod reopen;
mod report;
mod run;
mod sink;
mod source;

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{ConfigError, Fingerprint};
use campanile_idempotency::InspectStore;
use campanile_kafka::PublisherConfig;
use rdkafka::ClientConfig;
use serde_json::json;

pub use self::filter::LetterFilter;
pub use self::preview::{ReasonCount, RedrivePreview};
pub use self::report::{LetterOutcome, LetterReport, RedriveObserver, RedriveSummary};
use self::run::Run;
use self::sink::Sink;
use self::source::Source;
use crate::AdminError;

/// Brings the letters of a dead-letter topic back, up to the end that the topic has at the start.
///
/// For each letter, the store is asked first. By its answer, and by the letter itself, the letter is
///
/// * reopened: its key gets all its attempts again, and then its record is produced to its topic,
///   with its key, payload, timestamp and headers, without those of the dead letter, and with the
///   header `campanile-redrives`, which counts how often it was brought back. The partition follows
///   from the key;
/// * produced, if its key had been reopened before, by another run or by an operator, and was not
///   locked since: its record is produced as above, perhaps for a second time;
/// * skipped, if its key is COMPLETED, was locked again since, or is not given up;
/// * deferred, if its key is being processed, until that ends or the [patience](Self::with_patience)
///   is used up;
/// * parked, if its record cannot be produced: it is no letter of Campanile, has no payload, was
///   brought back too often, or its topic does not exist. Also if it held no lock, or if its key has
///   no entry in the store, unless you allow these.
///
/// A letter stays in the dead-letter topic in any case.
///
/// The brokers may delete a record with a timestamp that is older than the `retention.ms` of its topic
/// before it is consumed.
///
/// # Guarantees
/// * The key is reopened, then the record is produced and acknowledged by all in-sync replicas, then
///   the letter is [reported](RedriveObserver::handled), and then its offset is committed, in a
///   consumer group of the run. A run that is killed is resumed by the next run of the same group,
///   and no letter is lost.
/// * The letters that a killed run had not committed are handled again. Their tokens prevent a second
///   run of the handler: a key that was locked since is skipped. A record that was produced twice is
///   a duplicate by its idempotency key. This does not hold for records that are produced
///   [without a lock](Self::with_letters_without_key), nor for keys that are the coordinates of a
///   record ([`key::coordinates`](campanile_core::key::coordinates)), because each copy has its own.
/// * Several runs of one group at a time share the partitions, and end when all letters are handled. A
///   run takes over the partitions of one that was killed, after its session timeout (6 s). A run
///   that has deferred a letter does not wait for the others.
#[derive(Clone, Debug)]
#[must_use]
pub struct Redrive {
    topic: Arc<str>,
    store_name: Option<String>,
    group: Option<String>,
    filter: LetterFilter,
    rate: Option<NonZeroU32>,
    max: Option<u64>,
    max_redrives: u32,
    parking_topic: Option<Arc<str>>,
    without_key: bool,
    without_entry: bool,
    patience: Duration,
    timeout: Duration,
}

impl Redrive {
    /// Creates a run for all letters of this dead-letter topic.
    pub fn new(topic: impl Into<Arc<str>>) -> Self {
        Self {
            topic: topic.into(),
            store_name: None,
            group: None,
            filter: LetterFilter::default(),
            rate: None,
            max: None,
            max_redrives: 3,
            parking_topic: None,
            without_key: false,
            without_entry: false,
            patience: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
        }
    }

    /// Names the store. Consumers with different stores may share a dead-letter topic, and a run parks the
    /// letters whose keys have no entry in its store. So the default of the [group](Self::with_group)
    /// contains the name, and the runs with another store handle them. Without credentials, see
    /// [`StoreConfig::name_of`](crate::StoreConfig::name_of). Default: none.
    pub fn with_store_name(mut self, name: impl Into<String>) -> Self {
        self.store_name = Some(name.into());
        self
    }

    /// Sets the consumer group whose offsets say where to resume. Default: a name that begins with
    /// `campanile-redrive.` and the topic. It differs by the store, the filter and the settings that
    /// decide which letters are parked, and where, so that letters that one run passed over are seen by
    /// another. A parked letter counts as handled: once its cause is fixed, a group with another name
    /// handles all letters again, and skips those whose keys were locked since they were brought back.
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Selects letters. Default: all.
    pub fn with_filter(mut self, filter: LetterFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Limits the letters per second, on average: after a delay, the letters of at most one second are
    /// handled without a wait. Letters that are not selected do not count. Default: no limit.
    pub fn with_rate(mut self, letters_per_second: NonZeroU32) -> Self {
        self.rate = Some(letters_per_second);
        self
    }

    /// Limits the letters that the run handles. Letters that are not selected do not count. Default:
    /// no limit.
    pub fn with_max(mut self, letters: u64) -> Self {
        self.max = Some(letters);
        self
    }

    /// Sets how often a record is brought back. A letter is parked if its record was brought back so
    /// often. Default: 3, because a record that fails again after three fixes needs another kind of
    /// attention.
    pub fn with_max_redrives(mut self, redrives: u32) -> Self {
        self.max_redrives = redrives;
        self
    }

    /// Copies letters that are parked to this topic, as they are, with the time of the copy. It must exist.
    /// Default: none; the letters are only reported.
    pub fn with_parking_topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.parking_topic = Some(topic.into());
        self
    }

    /// Also produces the records of letters that held no lock: records that did not decode, had no
    /// valid key, or reused the key of another payload. Nothing prevents that such a record is
    /// produced and processed twice, if the run is killed, a letter before it was deferred, or two
    /// groups handle it. Default: they are parked.
    pub fn with_letters_without_key(mut self) -> Self {
        self.without_key = true;
        self
    }

    /// Also produces the records of letters that have no entry in the store, because the entry
    /// has expired or was lost. Default: they are parked, because a wrong store has no entries
    /// either, and the consumer would then answer the records as already given up.
    pub fn with_letters_without_entry(mut self) -> Self {
        self.without_entry = true;
        self
    }

    /// Sets how long the run waits, in total, for keys that are being processed. Default: 30 s, the
    /// time after which the lock of a process that was killed expires by default.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how long Kafka or the store may be away before the run ends with an error. Default:
    /// 60 s, enough for a restart or a failover.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the consumer group.
    pub fn group(&self) -> String {
        if let Some(group) = &self.group {
            return group.clone();
        }
        let (topic, choices) = (&self.topic, self.choices());
        if choices == Self::new(topic.clone()).choices() {
            return format!("campanile-redrive.{topic}");
        }
        let hash = Fingerprint::of(choices.as_bytes()).to_bits();
        format!("campanile-redrive.{topic}.{hash:016x}")
    }

    /// Returns everything that distinguishes the runs of a topic whose groups must differ.
    fn choices(&self) -> String {
        let Self { store_name, filter, max_redrives, without_key, without_entry, .. } = self;
        let (filter, parking_topic) = (filter.to_json(), self.parking_topic.as_deref());
        json!([store_name, filter, max_redrives, parking_topic, without_key, without_entry])
            .to_string()
    }

    /// Brings letters back until all are handled, or `stop` completes. Must be called on a Tokio
    /// runtime with timers.
    ///
    /// # Errors
    /// Fails if a setting is wrong, if Kafka or the store is away for longer than the
    /// [timeout](Self::with_timeout), or if the observer fails. The next run resumes.
    ///
    /// # Cancellation
    /// Dropping the future is as safe as a kill, but does not leave the group gracefully. Let `stop`
    /// complete instead: the run then ends after the letters in progress, or without them if the store
    /// does not answer within 2 s.
    pub async fn run(
        &self,
        kafka: &ClientConfig,
        store: &impl InspectStore,
        observer: &mut impl RedriveObserver,
        stop: impl Future,
    ) -> Result<RedriveSummary, AdminError> {
        let publisher = PublisherConfig::from(kafka.clone()).with_timeout(self.timeout);
        let sink = Sink::new(publisher, self.parking_topic.clone())?;
        let source = Source::join(kafka, &self.topic, &self.group(), self.timeout).await?;
        self.check_parking_topic(&source).await?;
        Run::new(self, source, store, sink, observer).finish(pin!(stop)).await
    }

    /// Counts what a run would do now, without doing it: nothing is written to Kafka or the store,
    /// and no offset is committed.
    ///
    /// # Errors
    /// Fails if a setting is wrong, or if Kafka or the store is away for longer than the timeout.
    pub async fn preview(
        &self,
        kafka: &ClientConfig,
        store: &impl InspectStore,
    ) -> Result<RedrivePreview, AdminError> {
        let mut source = Source::attach(kafka, &self.topic, &self.group(), self.timeout).await?;
        let preview = RedrivePreview::read(self, &mut source, store).await;
        source.close().await;
        preview
    }

    async fn check_parking_topic(&self, source: &Source) -> Result<(), AdminError> {
        let Some(topic) = &self.parking_topic else {
            return Ok(());
        };
        let error = if *topic == self.topic {
            format!("`{topic}` cannot be the parking topic of itself")
        } else if source.partitions_of(topic).await?.is_none() {
            format!("there is no topic `{topic}` to park letters in")
        } else {
            return Ok(());
        };
        Err(ConfigError::new(error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_differs_by_what_is_selected_or_parked() {
        let redrive = || Redrive::new("payments.dead");
        let filter = |reason: &str| {
            let filter = LetterFilter { reason: Some(reason.to_owned()), ..Default::default() };
            redrive().with_filter(filter).group()
        };
        assert_eq!(redrive().group(), "campanile-redrive.payments.dead");
        assert_eq!(redrive().with_max(5).group(), redrive().group());
        let groups = [
            redrive().group(),
            filter("a"),
            filter("b"),
            redrive().with_max_redrives(9).group(),
            redrive().with_letters_without_key().group(),
            redrive().with_letters_without_entry().group(),
            redrive().with_parking_topic("lot").group(),
            redrive().with_parking_topic("garage").group(),
            redrive().with_store_name("garage").group(),
            redrive().with_store_name("redis://other").group(),
        ];
        let distinct: std::collections::HashSet<_> = groups.iter().collect();
        assert_eq!(distinct.len(), groups.len(), "{groups:?}");
        assert_eq!(filter("a"), filter("a"));
        assert_eq!(redrive().with_group("mine").group(), "mine");
    }
}
