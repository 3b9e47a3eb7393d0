//! Explains why a record ran, waits, or did not run.
//!
//! [`Explain`] reads the record from Kafka, finds its key as the application does, reads the entry of
//! the key and the offset of the group, and returns an [`Explanation`] with the [`Cause`].
//!
//! ```no_run
//! use campanile_admin::explain::{Explain, KeySource};
//! use campanile_idempotency::MemoryStore;
//! use rdkafka::ClientConfig;
//!
//! # async fn run(store: MemoryStore) -> Result<(), campanile_core::BoxError> {
//! let mut kafka = ClientConfig::new();
//! kafka.set("bootstrap.servers", "127.0.0.1:9092");
//! let explanation = Explain::new("payments/3@42".parse()?, "billing.payments".try_into()?)
//!     .with_group("billing")
//!     .run(&kafka, &store, &KeySource::JsonPointer("/id".into()))
//!     .await?;
//! println!("{explanation}");
//! # Ok(())
//! # }
//! ```

mod cause;
mod decide;
mod kafka;
mod key_source;

use std::fmt;
use std::time::Duration;

use campanile_core::{Coordinates, IdempotencyKey, KeyExtractor, Namespace, Record, StoreKey};
use campanile_idempotency::InspectStore;
use rdkafka::ClientConfig;
use serde::{Serialize, Serializer};

pub use self::cause::Cause;
use self::decide::Facts;
pub use self::key_source::KeySource;
use crate::AdminError;
use crate::entries::{EntryReport, inspect, printable};

/// The question why a record ran, waits, or did not run.
#[derive(Clone, Debug)]
#[must_use]
pub struct Explain {
    record: Coordinates,
    namespace: Namespace,
    group: Option<Box<str>>,
    max_attempts: Option<u16>,
    timeout: Duration,
}

impl Explain {
    /// Asks for the record at these coordinates, and for the entry of its key in this namespace.
    pub const fn new(record: Coordinates, namespace: Namespace) -> Self {
        let timeout = Duration::from_secs(10);
        Self { record, namespace, group: None, max_attempts: None, timeout }
    }

    /// Sets the consumer group. Its committed offset says whether the record is finished. Without it,
    /// a record without an entry cannot be explained further.
    pub fn with_group(mut self, group: impl Into<Box<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the maximum attempts of the application, which entries do not contain. Without it, a record
    /// without attempts left looks like one that is retried.
    pub const fn with_max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long to wait for an answer of the brokers. Default: 10 s.
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Finds the explanation. Nothing is written to the store, no group is joined, and no offset is
    /// committed. Must be called on a Tokio runtime.
    ///
    /// # Errors
    /// Fails if there is no such topic or partition, or if the brokers or the store cannot be reached
    /// or refuse a request. A record that does not exist is no error, but a [`Cause`].
    ///
    /// # Cancellation
    /// Requests to the brokers that are in flight end in the background.
    pub async fn run(
        &self,
        kafka: &ClientConfig,
        store: &impl InspectStore,
        key: &impl KeyExtractor<Record>,
    ) -> Result<Explanation, AdminError> {
        let observed = {
            let (kafka, question) = (kafka.clone(), self.clone());
            tokio::task::spawn_blocking(move || {
                let group = question.group.as_deref();
                kafka::observe(&kafka, &question.record, group, question.timeout)
            })
        };
        let observed = observed
            .await
            .map_err(|error| AdminError::unavailable("cannot read the record", error))??;
        let mut explanation = Explanation {
            record: self.record.clone(),
            cause: Cause::NoKey,
            detail: None,
            bounds: observed.bounds,
            group: observed.group,
            entry: None,
        };
        let record = match observed.record {
            Ok(record) => record,
            Err(cause) => return Ok(Explanation { cause, ..explanation }),
        };
        match key.extract(&record) {
            Ok(None) => {}
            Ok(Some(key)) => self.explain(&mut explanation, store, &record, &key).await?,
            Err(error) => {
                explanation.cause = Cause::InvalidKey;
                explanation.detail = Some(error.to_string());
            }
        }
        Ok(explanation)
    }

    async fn explain(
        &self,
        explanation: &mut Explanation,
        store: &impl InspectStore,
        record: &Record,
        key: &IdempotencyKey,
    ) -> Result<(), AdminError> {
        let store_key = StoreKey::new(self.namespace.clone(), key);
        let entry = inspect(store, &store_key).await?.with_key(key);
        let group = explanation.group.as_ref();
        let (max_attempts, (_, end)) = (self.max_attempts, explanation.bounds);
        explanation.cause = Facts { record, entry: &entry, group, max_attempts, end }.cause();
        explanation.entry = Some(entry);
        Ok(())
    }
}

/// Why a record ran, waits, or did not run, with what is known.
///
/// `Display` shows it in words. It serializes as an object with the fields `record`, `cause`, `text`,
/// `hint`, `start` and `end` (the offsets of the partition), and what there is of `detail`, `group`
/// (see [`GroupReport`]) and `entry` (see [`EntryReport`]).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The coordinates of the record.
    pub record: Coordinates,
    /// The cause.
    pub cause: Cause,
    /// The error of a key that cannot be read.
    pub detail: Option<String>,
    /// The first offset of the partition, and the offset behind the last record.
    pub bounds: (i64, i64),
    /// What is known of the group, if one was named.
    pub group: Option<GroupReport>,
    /// The entry of the record's key, if it has a key.
    pub entry: Option<EntryReport>,
}

/// What the brokers know of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupReport {
    /// The name of the group.
    pub name: Box<str>,
    /// The committed offset in the record's partition, if there is one.
    pub committed: Option<i64>,
    /// Whether the record is the first one that is not finished.
    pub is_next: bool,
    /// Whether the group is known to have no members.
    pub is_empty: bool,
    /// The number of members. `None` if it is unknown, as that of groups of Kafka's newer protocol. A
    /// process that was killed is a member until its session timeout.
    pub members: Option<usize>,
    /// The member that the record's partition is assigned to, as `client.id@host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<Box<str>>,
}

impl GroupReport {
    /// Checks whether the record at this offset is finished.
    pub fn is_committed(&self, offset: i64) -> bool {
        self.committed.is_some_and(|committed| committed > offset)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, cause, detail, bounds: (start, end), group, entry } = self;
        writeln!(f, "{record}: {cause}")?;
        if let Some(detail) = detail {
            writeln!(f, "{}", detail.escape_debug())?;
        }
        write!(f, "{}\n\npartition offsets from {start} to before {end}", cause.hint())?;
        if let Some(group) = group {
            write!(f, "\ngroup     {}: ", group.name)?;
            match group.committed {
                None => f.write_str("no committed offset")?,
                Some(committed) => {
                    let finished = group.is_committed(record.offset);
                    let state = if finished { "finished" } else { "not finished" };
                    write!(f, "committed offset {committed}, so the record is {state}")?;
                }
            }
            match (group.is_committed(record.offset), group.members, &group.member) {
                (_, Some(0), _) => f.write_str("; no members")?,
                (true, ..) | (_, None, _) => {}
                (_, _, None) => f.write_str("; the partition is assigned to no member")?,
                (_, _, Some(member)) => {
                    write!(f, "; the partition is assigned to {}", printable(member))?;
                }
            }
        }
        match entry {
            Some(entry) => write!(f, "\n{entry}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            record: String,
            cause: Cause,
            text: String,
            hint: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            detail: Option<&'a str>,
            start: i64,
            end: i64,
            #[serde(skip_serializing_if = "Option::is_none")]
            group: Option<&'a GroupReport>,
            #[serde(skip_serializing_if = "Option::is_none")]
            entry: Option<&'a EntryReport>,
        }
        let (start, end) = self.bounds;
        Json {
            record: self.record.to_string(),
            cause: self.cause,
            text: self.cause.to_string(),
            hint: self.cause.hint(),
            detail: self.detail.as_deref(),
            start,
            end,
            group: self.group.as_ref(),
            entry: self.entry.as_ref(),
        }
        .serialize(serializer)
    }
}
