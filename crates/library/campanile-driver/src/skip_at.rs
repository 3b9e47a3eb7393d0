//! Records that are skipped without an attempt.

use std::str::FromStr;
use std::sync::Arc;

use campanile_core::{ConfigError, Coordinates};

/// A record to skip, by its coordinates and, if it is named, the id of its topic. Parses from
/// `topic/partition@offset` and `topic/partition@offset#topic-id`.
///
/// A topic that is deleted and recreated has another id, so a record of the new topic at the same
/// coordinates is not skipped. `kafka-topics.sh --describe` prints the id.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SkipAt {
    /// Where the record is.
    pub coordinates: Coordinates,
    /// The id of the topic. `None` skips the record of any topic with the name.
    pub topic_id: Option<Arc<str>>,
}

impl FromStr for SkipAt {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (coordinates, id) = text.split_once('#').unzip();
        if id == Some("") {
            return Err(ConfigError::new(format!("{text:?} has no topic id after the `#`")));
        }
        let coordinates = coordinates.unwrap_or(text).parse()?;
        Ok(Self { coordinates, topic_id: id.map(Arc::from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_and_without_a_topic_id_is_parsed() {
        let parse = |text: &str| text.parse::<SkipAt>().unwrap();
        let coordinates: Coordinates = "orders.v1/3@42".parse().unwrap();
        assert_eq!(
            parse("orders.v1/3@42"),
            SkipAt { coordinates: coordinates.clone(), topic_id: None }
        );
        let topic_id = Some("hC4cGqLwTGOlWjzZ9DPcdQ".into());
        let expected = SkipAt { coordinates, topic_id };
        assert_eq!(parse("orders.v1/3@42#hC4cGqLwTGOlWjzZ9DPcdQ"), expected);
        for text in ["orders/3@42#", "orders/3#id", "#id", "orders/3@x#id"] {
            text.parse::<SkipAt>().unwrap_err();
        }
    }
}
