//! Whose copies may be in the retry topics.

use std::collections::HashSet;

use campanile_core::Record;
use regex_lite::Regex;

use crate::error::ConsumerError;

/// The topics of the subscription, retry topics among them: a copy of any other topic's record is not
/// ours.
pub(crate) struct Sources {
    names: HashSet<String>,
    patterns: Vec<Regex>,
    /// Whether one is a regular expression that only librdkafka can read: then it may be any topic.
    any: bool,
}

impl Sources {
    pub(crate) fn new(subscription: &[String]) -> Self {
        let (patterns, names): (Vec<_>, Vec<_>) =
            subscription.iter().cloned().partition(|topic| topic.starts_with('^'));
        let parsed: Vec<_> = patterns.iter().flat_map(|pattern| Regex::new(pattern)).collect();
        let any = parsed.len() < patterns.len();
        Self { names: names.into_iter().collect(), patterns: parsed, any }
    }

    fn contain(&self, topic: &str) -> bool {
        self.any
            || self.names.contains(topic)
            || self.patterns.iter().any(|pattern| pattern.is_match(topic))
    }

    /// An error if it is a copy whose record this consumer has never read: another group's, whose
    /// handlers it would be for.
    pub(crate) fn check(&self, record: &Record) -> Result<(), ConsumerError> {
        let origin = record.origin();
        if origin == record.coordinates() || self.contain(&origin.topic) {
            return Ok(());
        }
        let source = format!(
            "it is a copy of {origin}, and this consumer does not read `{topic}`: another group seems \
             to have `{retries}` among its retry topics. Give each group retry topics of its own. If \
             `{topic}` was taken out of `subscribe`, leave it in until its copies are through",
            topic = origin.topic,
            retries = record.topic(),
        );
        Err(ConsumerError::Stopped { at: record.coordinates().clone(), source: source.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contain(subscription: &[&str], topic: &str) -> bool {
        let subscription: Vec<_> = subscription.iter().map(|&topic| topic.to_owned()).collect();
        Sources::new(&subscription).contain(topic)
    }

    #[test]
    fn a_topic_is_ours_by_its_name_or_by_a_regular_expression() {
        assert!(contain(&["orders"], "orders"));
        assert!(!contain(&["orders"], "orders2") && !contain(&["order."], "orders"));
        assert!(contain(&["^order"], "orders2") && contain(&["^a$", "^[a-z]+\\.eu$"], "bank.eu"));
        assert!(!contain(&["^order"], "bank") && !contain(&["^order$"], "orders"));
        assert!(contain(&["^(a)\\1$"], "aa"), "librdkafka's alone");
    }
}
