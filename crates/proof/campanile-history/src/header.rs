//! The header of a process's events.

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use crate::event::{from_maybe_text, from_text};

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 1;

/// The first line of each process: `{"event":"history", …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Marks the line as a header.
    #[serde(deserialize_with = "from_text")]
    pub event: HeaderTag,
    /// The version of the format.
    pub version: u32,
    /// The name of the process, unique in its history.
    pub process: String,
    /// The name of the clock. Times of different clocks cannot be compared.
    pub clock: String,
    /// The unit of all times and durations.
    #[serde(deserialize_with = "from_text")]
    pub unit: Unit,
    /// What the judge must know. At least one process of a history must have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// The value of `event` in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeaderTag {
    /// `history`.
    #[serde(rename = "history")]
    History,
}

/// The unit of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
}

/// The settings of the consumers that decide what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Which records are processed in order.
    #[serde(deserialize_with = "from_text")]
    pub order: Order,
    /// The time to live of a lock, in microseconds.
    pub lock_ttl: u64,
    /// The maximum time for which a handler may hold its lock, in microseconds, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold: Option<u64>,
    /// The transactions in which handlers have their effects, if they have them in transactions.
    #[serde(
        default,
        deserialize_with = "from_maybe_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub transactions: Option<Transactions>,
    /// How far the time of a commit may be before its cause, in microseconds. Brokers truncate
    /// their timestamps to milliseconds. Default: 0.
    #[serde(default, deserialize_with = "or_default")]
    pub tolerance: u64,
}

/// The order in which records of a partition are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One after another.
    Partition,
    /// One after another if they have the same `order` in their [`Sent`](crate::Sent).
    Key,
    /// In any order.
    None,
}

/// The transactions in which handlers have their effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transactions {
    /// Those of the store, each committed together with the entry.
    Store,
    /// Those of the broker, each committed together with the offset of the record.
    Broker,
}

/// Reads a number that may be `null`, as other fields that may be missing.
fn or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
