//! The events of a history.

use serde::de::value::StringDeserializer;
use serde::de::{Deserializer, IntoDeserializer};
use serde::{Deserialize, Serialize};

use crate::{Coordinates, Partition};

/// An event of a history, one per line. All times are in microseconds of the history's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The broker acknowledged a record.
    Sent(Sent),
    /// A handler starts.
    Begin(Begin),
    /// A handler has had its effect.
    Effect(Effect),
    /// A handler has ended.
    End(End),
    /// The stack answered a delivery of a record.
    Answer(Answer),
    /// The broker acknowledged the dead letter of a record.
    DeadLetter(Published),
    /// The broker acknowledged the copy of a record in a retry topic.
    Copy(Published),
    /// A policy or a seek skipped a record.
    Skipped(Skipped),
    /// The broker recorded a commit of the group.
    Commit(Position),
    /// An operator or a seek moved the group to an offset.
    Reset(Position),
    /// An operator or the retention deleted the records of a partition below an offset.
    Deleted(Position),
    /// The entry of a key, as the store has it.
    Entry(Entry),
    /// The effect of a run, as a reader of the store sees it.
    Visible(Visible),
    /// An output of a record, as a reader of committed messages sees it.
    Output(Published),
    /// An operator reopened a key.
    Reopened(KeyEvent),
    /// An operator took the lock of a key from its owner.
    Unlocked(KeyEvent),
    /// Something was broken, from `at` until `until`.
    Fault(Fault),
}

/// A record that the broker acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// When the record was sent.
    pub at: u64,
    /// Where the record is.
    pub record: Coordinates,
    /// The idempotency key. `None` if the record has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key by which records are processed in order, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
}

/// The start of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// When the handler started.
    pub at: u64,
    /// The number of the run, unique in its process.
    pub run: u64,
    /// The record that is processed.
    pub record: Coordinates,
    /// The idempotency key. `None` if the record has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The fencing token. `None` if the handler runs without a lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of the attempt, from 1. `None` if the handler runs without a lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// The effect of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// When the effect happened, at the latest.
    pub at: u64,
    /// The number of the run.
    pub run: u64,
}

/// The end of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When the handler ended.
    pub at: u64,
    /// The number of the run.
    pub run: u64,
    /// How it ended.
    #[serde(deserialize_with = "from_text")]
    pub how: How,
    /// Why the lock was lost, in words, if it was lost before the handler ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It returned `Ok`.
    Ok,
    /// It returned an error, or panicked.
    Error,
    /// Its future was dropped.
    Dropped,
}

/// The answer of the stack to a delivery of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// When the stack answered.
    pub at: u64,
    /// The record.
    pub record: Coordinates,
    /// The answer.
    #[serde(deserialize_with = "from_text")]
    pub outcome: Outcome,
    /// The text of the error, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The handler ran, and its success is recorded.
    Processed,
    /// The key is COMPLETED.
    Duplicate,
    /// The key is FAILED.
    GivenUp,
    /// The handler ran without a lock.
    Unguarded,
    /// An error; the record is not finished.
    Error,
    /// None: the response was dropped, and the record is not finished.
    Dropped,
}

impl Outcome {
    /// Checks whether the record is finished.
    pub const fn is_finished(self) -> bool {
        !matches!(self, Self::Error | Self::Dropped)
    }
}

/// A message that was published for a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// When the message was published.
    pub at: u64,
    /// The record.
    pub record: Coordinates,
    /// Where the message is.
    pub to: Coordinates,
}

/// A record that was skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// When it was skipped.
    pub at: u64,
    /// The record.
    pub record: Coordinates,
}

/// A committed offset, one that the group was moved to, or the end of what was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// When the broker recorded it. For records that were deleted, before that.
    pub at: u64,
    /// The partition.
    pub partition: Partition,
    /// The offset of the next record.
    pub offset: i64,
}

/// The entry of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When the entry was read, at the latest.
    pub at: u64,
    /// When the entry was read, at the earliest. If `None` or later, it is `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The idempotency key.
    pub key: String,
    /// The state.
    #[serde(deserialize_with = "from_text")]
    pub state: State,
    /// The fencing token. `None` if the entry is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of counted attempts. `None` if the entry is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl Entry {
    /// Returns when the entry was read, at the earliest.
    pub fn since(&self) -> u64 {
        self.since.map_or(self.at, |since| since.min(self.at))
    }
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The store has no entry of the key.
    Absent,
    /// PROCESSING.
    Processing,
    /// RETRYING.
    Retrying,
    /// COMPLETED.
    Completed,
    /// FAILED.
    Failed,
}

/// An effect in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visible {
    /// When the effect was read, at the latest.
    pub at: u64,
    /// The process of the run.
    pub process: String,
    /// The number of the run.
    pub run: u64,
}

/// What an operator did to a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEvent {
    /// When it was done.
    pub at: u64,
    /// The idempotency key.
    pub key: String,
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When it began, at the earliest.
    pub at: u64,
    /// When it ended, at the latest. `None` if it lasted until the end of the history, or, for a step of the
    /// clock, if it was over at `at`. Ignored for a killed process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// What was broken.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum FaultKind {
    /// A process was killed; it continues nothing.
    Killed {
        /// The process.
        process: String,
    },
    /// A process was suspended, and continued.
    Suspended {
        /// The process.
        process: String,
    },
    /// The store did not answer, or not in time.
    StoreUnavailable,
    /// The store lost writes that it had acknowledged within this interval, as in a failover.
    StoreLostWrites,
    /// The store removed entries of any age within this interval.
    StoreEvicted,
    /// The store ended sessions of its clients, and so rolled back their transactions.
    StoreSessionsEnded,
    /// A broker was killed, and restarted.
    BrokerKilled,
    /// A topic was deleted and created again, and consumers may not know until then.
    TopicRecreated,
    /// The store's clock was set.
    ClockStepped {
        /// Microseconds; negative if the clock was set back.
        by: i64,
    },
    /// A network connection was cut, delayed, or lost what was sent.
    NetworkCut {
        /// The process that was cut off. `None` if all were.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
        /// From what it was cut off.
        #[serde(deserialize_with = "from_text")]
        peer: Peer,
    },
}

impl FaultKind {
    /// Returns the process that has the fault, if it is that of one process.
    pub(crate) fn process(&self) -> Option<&String> {
        match self {
            Self::Killed { process } | Self::Suspended { process } => Some(process),
            Self::NetworkCut { process, .. } => process.as_ref(),
            Self::StoreUnavailable
            | Self::StoreLostWrites
            | Self::StoreEvicted
            | Self::StoreSessionsEnded
            | Self::BrokerKilled
            | Self::TopicRecreated
            | Self::ClockStepped { .. } => None,
        }
    }
}

/// The server at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The store.
    Store,
    /// A broker.
    Broker,
}

impl Event {
    /// Returns the event's time, in microseconds of the history's clock.
    pub fn at(&self) -> u64 {
        match self {
            Self::Sent(event) => event.at,
            Self::Begin(event) => event.at,
            Self::Effect(event) => event.at,
            Self::End(event) => event.at,
            Self::Answer(event) => event.at,
            Self::DeadLetter(event) | Self::Copy(event) | Self::Output(event) => event.at,
            Self::Skipped(event) => event.at,
            Self::Commit(event) | Self::Reset(event) | Self::Deleted(event) => event.at,
            Self::Entry(event) => event.at,
            Self::Visible(event) => event.at,
            Self::Reopened(event) | Self::Unlocked(event) => event.at,
            Self::Fault(event) => event.at,
        }
    }
}

/// Reads a value without fields from its name. What is derived would also read it from an object with
/// this name.
pub(crate) fn from_text<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text: StringDeserializer<D::Error> = String::deserialize(deserializer)?.into_deserializer();
    T::deserialize(text)
}

/// Reads a value without fields as [`from_text`] does, or `null`.
pub(crate) fn from_maybe_text<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let text: StringDeserializer<D::Error> = text.into_deserializer();
    T::deserialize(text).map(Some)
}
