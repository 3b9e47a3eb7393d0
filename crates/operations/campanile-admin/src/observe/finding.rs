//! What was found about a record.

use std::fmt;
use std::time::Duration;

use campanile_core::Coordinates;
use serde::{Serialize, Serializer};

use super::keys::Repeat;
use crate::entries::{EntryReport, printable};
use crate::time::Period;

/// Something that a guard prevents, or that it needs to be fixed. Is shown and serialized as the variant's
/// name in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecordFindingKind {
    /// The offset is committed, and the key has no entry.
    NoEntry,
    /// The offset is committed, and the last run has begun and its end is not recorded.
    Unfinished,
    /// The offset is committed, and the last run has failed.
    Failed,
    /// The offset is committed, and the key was given up.
    GivenUp,
    /// The offset is committed, and the value in the store is no entry of this version.
    Unreadable,
    /// An earlier record has the same key and the same payload.
    Repeated,
    /// An earlier record has the same key and another payload.
    OtherPayload,
    /// The record has no key.
    NoKey,
    /// The record's key cannot be read.
    InvalidKey,
}

impl RecordFindingKind {
    /// Checks whether the record is finished, and its key is not completed.
    pub const fn is_lost(self) -> bool {
        matches!(
            self,
            Self::NoEntry | Self::Unfinished | Self::Failed | Self::GivenUp | Self::Unreadable
        )
    }

    /// Returns a sentence about the record.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoEntry => {
                "never begun, or begun before it was observed, or not recorded, or the entry has expired"
            }
            Self::Unfinished => "begun, and no end recorded: its process died or was interrupted",
            Self::Failed => "the last run failed, and its offset was committed all the same",
            Self::GivenUp => "given up",
            Self::Unreadable => "the value in the store is no entry of this version",
            Self::Repeated => "repeated by the producer: same key, same payload",
            Self::OtherPayload => "the key of an earlier record with another payload",
            Self::NoKey => "no idempotency key",
            Self::InvalidKey => "the idempotency key cannot be read",
        }
    }
}

impl fmt::Display for RecordFindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A finding about one record.
///
/// Serializes as an object with the fields `record`, `finding` and `text`, and what there is of `key`,
/// `first` (the first record with the key), `millis` and `offsets` (the distance to it), `error` (of a key
/// that cannot be read) and `entry` (see [`EntryReport`]).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordFinding {
    /// The coordinates of the record.
    pub record: Coordinates,
    /// What was found.
    pub kind: RecordFindingKind,
    /// The idempotency key. Bytes that are not UTF-8 are escaped.
    pub key: Option<String>,
    /// The first record with the same key, if this one is not the first.
    pub first: Option<Coordinates>,
    /// The time between the timestamps of the two records.
    pub time: Option<Duration>,
    /// The number of offsets between the two, if they are in the same partition.
    pub offsets: Option<u64>,
    /// Why the key cannot be read.
    pub error: Option<String>,
    /// The entry of the key, if the record was lost or skipped.
    pub entry: Option<EntryReport>,
}

impl RecordFinding {
    pub(super) fn new(record: &Coordinates, kind: RecordFindingKind) -> Self {
        let (record, first, time, offsets) = (record.clone(), None, None, None);
        Self { record, kind, key: None, first, time, offsets, error: None, entry: None }
    }

    pub(super) fn with_repeat(self, repeat: Repeat) -> Self {
        let Repeat { first, time, offsets, .. } = repeat;
        Self { first: Some(first), time, offsets, ..self }
    }
}

impl fmt::Display for RecordFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, kind, key, first, time, offsets, error, entry, .. } = self;
        write!(f, "{record}  {kind}")?;
        if let Some(entry) = entry {
            return write!(f, ": {}", entry.to_line());
        }
        if let Some(key) = key {
            write!(f, ": key {}", printable(key))?;
        }
        if let Some(first) = first {
            write!(f, " of {first}")?;
        }
        if let Some(time) = time {
            write!(f, ", {} apart", Period(*time))?;
        }
        if let Some(offsets) = offsets {
            write!(f, ", {offsets} offsets apart")?;
        }
        match error {
            Some(error) => write!(f, ": {}", printable(error)),
            None => Ok(()),
        }
    }
}

impl Serialize for RecordFinding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            record: String,
            finding: RecordFindingKind,
            text: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            key: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            first: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            millis: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            offsets: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            entry: Option<&'a EntryReport>,
        }
        Json {
            record: self.record.to_string(),
            finding: self.kind,
            text: self.kind.text(),
            key: self.key.as_deref(),
            first: self.first.as_ref().map(ToString::to_string),
            millis: self.time.and_then(|time| u64::try_from(time.as_millis()).ok()),
            offsets: self.offsets,
            error: self.error.as_deref(),
            entry: self.entry.as_ref(),
        }
        .serialize(serializer)
    }
}
