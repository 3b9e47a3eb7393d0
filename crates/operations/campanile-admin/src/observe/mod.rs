//! Compares a topic with what a consumer has done with it: which records were lost or skipped, which are
//! duplicates, and which have no valid key.
//!
//! [`Observe`] reads the records of a topic, the offsets that the consumer's group has committed, and the
//! entries of the keys. The entries are those that the consumer left while it was observed: PROCESSING
//! while its handler ran, COMPLETED after it succeeded, and RETRYING after it failed.
//!
//! ```no_run
//! use campanile_admin::explain::KeySource;
//! use campanile_admin::observe::Observe;
//! use campanile_idempotency::MemoryStore;
//! use rdkafka::ClientConfig;
//!
//! # async fn run(store: MemoryStore) -> Result<(), campanile_core::BoxError> {
//! let mut kafka = ClientConfig::new();
//! kafka.set("bootstrap.servers", "127.0.0.1:9092");
//! let report = Observe::new("payments", "billing", "billing.payments".try_into()?)
//!     .run(&kafka, &store, &KeySource::default(), |finding| {
//!         println!("{finding}");
//!         Ok(())
//!     })
//!     .await?;
//! println!("{} records were read", report.records);
//! # Ok(())
//! # }
//! ```

mod decide;
mod finding;
mod keys;
mod report;
mod source;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use campanile_core::{
    Coordinates, Fingerprint, IdempotencyKey, KeyExtractor, Namespace, Record, StoreKey,
};
use campanile_idempotency::InspectStore;
use futures_util::{StreamExt, TryStreamExt, stream};
use rdkafka::ClientConfig;

use self::decide::Verdict;
pub use self::finding::{RecordFinding, RecordFindingKind};
use self::keys::{Keys, Noted, Repeat};
pub use self::report::{ObserveReport, ObservedPartition};
use self::source::{Fetched, Source};
use crate::AdminError;
use crate::entries::{EntryReport, inspect};
use crate::pacer::Pacer;

/// The number of entries that are read at a time.
const LOOK_UPS: usize = 16;

/// A few percent of the time of a Redis.
const DEFAULT_RATE: NonZeroU32 = NonZeroU32::new(2_000).expect("not zero");

/// A position in each partition of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// The first record that there is.
    Start,
    /// Behind the last record that there is when the run starts.
    End,
    /// The first record with this timestamp or a later one.
    Time(SystemTime),
    /// This offset.
    Offset(i64),
}

/// The question what a consumer group has done with the records of a topic.
///
/// Each different key takes 56 to 112 bytes of memory, and half as much again while the table grows. The
/// records themselves are not kept. The entry of a key is read once, if the group's committed offset is past
/// a record of it: in Redis one round trip of `TIME`, `GET` and `PEXPIRETIME`, in Postgres one query.
#[derive(Clone, Debug)]
#[must_use]
pub struct Observe {
    topic: Arc<str>,
    group: Box<str>,
    namespace: Namespace,
    from: Position,
    to: Position,
    partition: Option<i32>,
    rate: NonZeroU32,
    timeout: Duration,
}

impl Observe {
    /// Asks for the records of this topic, the committed offsets of this group, and the entries in this
    /// namespace.
    pub fn new(
        topic: impl Into<Arc<str>>,
        group: impl Into<Box<str>>,
        namespace: Namespace,
    ) -> Self {
        Self {
            topic: topic.into(),
            group: group.into(),
            namespace,
            from: Position::Start,
            to: Position::End,
            partition: None,
            rate: DEFAULT_RATE,
            timeout: Duration::from_secs(10),
        }
    }

    /// Sets the first record. Default: [`Position::Start`]. Choose a time since which the consumer is
    /// observed: records that it processed before have no entries.
    pub const fn with_from(mut self, from: Position) -> Self {
        self.from = from;
        self
    }

    /// Sets the record behind the last one. Default: [`Position::End`].
    pub const fn with_to(mut self, to: Position) -> Self {
        self.to = to;
        self
    }

    /// Selects one partition. Default: all.
    pub const fn with_partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the largest number of entries that are read per second, on average. Default: 2000, which takes a
    /// few percent of the time of a Redis.
    pub const fn with_rate(mut self, entries_per_second: NonZeroU32) -> Self {
        self.rate = entries_per_second;
        self
    }

    /// Sets how long to wait for an answer of the brokers. Default: 10 s.
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Reads the records, and calls `found` for each finding, by partitions and offsets. Nothing is written to
    /// the store, no group is joined, and no offset is committed. Must be called on a Tokio runtime with
    /// timers.
    ///
    /// Two records of a key have the same payload if their [fingerprints](KeyExtractor::fingerprint) are
    /// equal, or, if the extractor has none, their payloads.
    ///
    /// # Errors
    /// Fails if there is no such topic or partition, if the group has committed no offset in the topic, if
    /// the brokers or the store cannot be reached or refuse a request, or if `found` fails.
    ///
    /// # Cancellation
    /// Requests to the brokers that are in flight end in the background.
    pub async fn run(
        &self,
        kafka: &ClientConfig,
        store: &impl InspectStore,
        key: &impl KeyExtractor<Record>,
        mut found: impl FnMut(&RecordFinding) -> Result<(), AdminError>,
    ) -> Result<ObserveReport, AdminError> {
        let (kafka, settings) = (kafka.clone(), self.clone());
        let mut source = blocking(move || Source::open(&kafka, &settings)).await?;
        let mut report = ObserveReport::new(&self.topic, &self.group, source.partitions());
        let mut keys = Keys::default();
        let mut pacer = Pacer::new(Some(self.rate));
        loop {
            let (same, batch) = blocking(move || {
                let batch = source.read()?;
                Ok((source, batch))
            })
            .await?;
            source = same;
            let Some(batch) = batch else { break };
            let examined = self.examine(&batch, key, &mut keys, &mut report);
            for finding in self.judge(examined, store, &mut pacer, &mut report).await? {
                found(&finding)?;
                report.add(finding);
            }
        }
        report.keys = keys.len() as u64;
        Ok(report)
    }

    /// Compares the records of a batch with those before.
    fn examine<'a>(
        &self,
        batch: &'a Fetched,
        extractor: &impl KeyExtractor<Record>,
        keys: &mut Keys,
        report: &mut ObserveReport,
    ) -> Vec<(&'a Record, Examined)> {
        let examine = |record: &'a Record| {
            let is_finished = decide::is_finished(&batch.partition, record.offset());
            report.records += 1;
            report.finished += u64::from(is_finished);
            let key = match extractor.extract(record) {
                Ok(Some(key)) => key,
                Ok(None) => {
                    return (record, Examined::WithoutKey(RecordFindingKind::NoKey, None));
                }
                Err(error) => {
                    let (kind, error) = (RecordFindingKind::InvalidKey, Some(error.to_string()));
                    return (record, Examined::WithoutKey(kind, error));
                }
            };
            let store_key = StoreKey::new(self.namespace.clone(), &key);
            let fingerprint = extractor.fingerprint(record).unwrap_or_else(|| {
                Fingerprint::of(record.payload().map(|payload| &payload[..]).unwrap_or_default())
            });
            let noted = keys.note(*store_key.digest(), record, fingerprint, is_finished);
            (record, Examined::Key { key, store_key, noted })
        };
        batch.records.iter().map(examine).collect()
    }

    /// Reads the entries of the keys that are judged now. Returns the findings in the order of the records.
    async fn judge(
        &self,
        examined: Vec<(&Record, Examined)>,
        store: &impl InspectStore,
        pacer: &mut Pacer,
        report: &mut ObserveReport,
    ) -> Result<Vec<RecordFinding>, AdminError> {
        let look_ups: Vec<_> = examined.iter().filter_map(|(_, it)| it.look_up()).collect();
        // At most the records of a batch.
        pacer.wait(u32::try_from(look_ups.len()).unwrap_or(u32::MAX)).await;
        let look_up = |(store_key, key): (StoreKey, IdempotencyKey)| async move {
            Ok::<_, AdminError>(inspect(store, &store_key).await?.with_key(&key))
        };
        let entries: Vec<EntryReport> =
            stream::iter(look_ups).map(look_up).buffered(LOOK_UPS).try_collect().await?;
        let mut entries = entries.into_iter();
        let mut findings = Vec::new();
        for (record, examined) in examined {
            let at = record.coordinates();
            match examined {
                Examined::WithoutKey(kind, error) => {
                    findings.push(RecordFinding { error, ..RecordFinding::new(at, kind) });
                }
                Examined::Key { key, noted, .. } => {
                    let entry = if noted.is_judged_now { entries.next() } else { None };
                    judge_key(at, &key, noted.repeat, entry, report, &mut findings);
                }
            }
        }
        Ok(findings)
    }
}

/// Judges a record with a key, by the first record with the key, and by the entry if it was read now.
fn judge_key(
    at: &Coordinates,
    key: &IdempotencyKey,
    repeat: Option<Repeat>,
    entry: Option<EntryReport>,
    report: &mut ObserveReport,
    findings: &mut Vec<RecordFinding>,
) {
    let finding =
        |kind| RecordFinding { key: Some(key.to_text().into()), ..RecordFinding::new(at, kind) };
    if let Some(entry) = entry {
        report.note_entry(&entry);
        match decide::judge(&entry) {
            Verdict::Completed => report.completed += 1,
            Verdict::Running => report.running += 1,
            Verdict::Lost(kind) => {
                findings.push(RecordFinding { entry: Some(entry), ..finding(kind) });
            }
        }
    }
    if let Some(repeat) = repeat {
        let kind = match repeat.has_same_payload {
            true => RecordFindingKind::Repeated,
            false => RecordFindingKind::OtherPayload,
        };
        findings.push(finding(kind).with_repeat(repeat));
    }
}

/// What a record is, before the store is asked.
enum Examined {
    /// The error is that of a key that cannot be read.
    WithoutKey(RecordFindingKind, Option<String>),
    Key {
        key: IdempotencyKey,
        store_key: StoreKey,
        noted: Noted,
    },
}

impl Examined {
    /// The key to look up now.
    fn look_up(&self) -> Option<(StoreKey, IdempotencyKey)> {
        match self {
            Self::Key { key, store_key, noted } if noted.is_judged_now => {
                Some((store_key.clone(), key.clone()))
            }
            _ => None,
        }
    }
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, AdminError> + Send + 'static,
) -> Result<T, AdminError> {
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| AdminError::unavailable("cannot read the topic", error))?
}
