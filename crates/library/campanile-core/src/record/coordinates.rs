//! The position of a record in Kafka.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::ConfigError;

/// Topic, partition and offset. Displays as `topic/partition@offset`, and parses from that text.
///
/// ```
/// use campanile_core::Coordinates;
/// let at: Coordinates = "payments/3@42".parse()?;
/// assert_eq!((&*at.topic, at.partition, at.offset), ("payments", 3, 42));
/// # Ok::<(), campanile_core::ConfigError>(())
/// ```
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

impl FromStr for Coordinates {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let parse = || {
            // The name of a topic contains neither of the separators.
            let (partition, offset) = text.split_once('@')?;
            let (topic, partition) = partition.split_once('/')?;
            let (partition, offset) = (partition.parse().ok()?, offset.parse().ok()?);
            let valid = !topic.is_empty() && partition >= 0 && offset >= 0;
            valid.then(|| Self { topic: topic.into(), partition, offset })
        };
        parse().ok_or_else(|| {
            ConfigError::new(format!("coordinates {text:?} do not match topic/partition@offset"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_parse_from_their_text_only() {
        let at: Coordinates = "orders.v1/3@42".parse().unwrap();
        assert_eq!(at.to_string(), "orders.v1/3@42");
        for text in ["", "orders", "orders/3", "orders@42", "/3@42", "orders/x@1", "orders/-1@2"] {
            let refused = text.parse::<Coordinates>().unwrap_err().to_string();
            assert!(refused.contains("topic/partition@offset"), "{refused}");
        }
    }
}
