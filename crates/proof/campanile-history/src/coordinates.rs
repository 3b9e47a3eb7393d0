//! Positions in Kafka, written as texts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A partition of a topic, written as `topic/partition`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Partition {
    /// The name of the topic.
    pub topic: String,
    /// The number of the partition.
    pub number: i32,
}

/// A record's position, written as `topic/partition@offset`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Coordinates {
    /// The partition.
    pub partition: Partition,
    /// The offset in the partition.
    pub offset: i64,
}

impl Coordinates {
    /// Creates coordinates.
    pub fn new(topic: impl Into<String>, partition: i32, offset: i64) -> Self {
        Self { partition: Partition { topic: topic.into(), number: partition }, offset }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

/// A text that is no partition, or no coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPosition {
    text: String,
    expected: &'static str,
}

impl fmt::Display for InvalidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} does not match {}", self.text, self.expected)
    }
}

impl std::error::Error for InvalidPosition {}

impl FromStr for Partition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        parse_partition(text)
            .ok_or_else(|| InvalidPosition { text: text.into(), expected: "topic/partition" })
    }
}

impl FromStr for Coordinates {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let parse = || {
            let (partition, offset) = text.split_once('@')?;
            let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
            Some(Self { partition: parse_partition(partition)?, offset })
        };
        parse().ok_or_else(|| InvalidPosition {
            text: text.into(),
            expected: "topic/partition@offset",
        })
    }
}

fn parse_partition(text: &str) -> Option<Partition> {
    // The name of a topic contains neither of the separators.
    let (topic, number) = text.split_once('/')?;
    let number = number.parse().ok().filter(|number| *number >= 0)?;
    (!topic.is_empty()).then(|| Partition { topic: topic.into(), number })
}

impl TryFrom<String> for Partition {
    type Error = InvalidPosition;

    fn try_from(text: String) -> Result<Self, InvalidPosition> {
        text.parse()
    }
}

impl TryFrom<String> for Coordinates {
    type Error = InvalidPosition;

    fn try_from(text: String) -> Result<Self, InvalidPosition> {
        text.parse()
    }
}

impl From<Partition> for String {
    fn from(partition: Partition) -> Self {
        partition.to_string()
    }
}

impl From<Coordinates> for String {
    fn from(coordinates: Coordinates) -> Self {
        coordinates.to_string()
    }
}
