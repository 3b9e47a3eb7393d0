//! The position of a record in Kafka.

use std::fmt;
use std::sync::Arc;

/// Topic, partition and offset. Displays as `topic/partition@offset`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// The name of the topic.
    pub topic: Arc<str>,
    /// The number of the partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.topic, self.partition, self.offset)
    }
}

impl fmt::Debug for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coordinates({self})")
    }
}
