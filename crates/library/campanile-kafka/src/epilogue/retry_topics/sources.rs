//! The topics that the records in retry topics may come from.

use std::collections::HashSet;

use campanile_core::{BoxError, Record};
use regex_lite::Regex;

use campanile_driver::ConsumerError;
use campanile_driver::private::log_stop;

/// The subscribed topics, including the retry topics. A copy of a record from any other topic is
/// not ours.
pub(crate) struct SourceTopics {
    names: HashSet<String>,
    patterns: Vec<Regex>,
    /// Whether there is a regular expression that only librdkafka or the brokers can parse. Then any
    /// topic may match.
    any: bool,
}

impl SourceTopics {
    /// In the classic protocol, a pattern matches any part of a name; in the newer one, it matches the
    /// whole name.
    pub(crate) fn new(subscription: &[String], newer_protocol: bool) -> Self {
        let (patterns, names): (Vec<_>, Vec<_>) =
            subscription.iter().cloned().partition(|topic| topic.starts_with('^'));
        let parse = |pattern: &String| match newer_protocol {
            true => Regex::new(&format!("^(?:{pattern})$")),
            false => Regex::new(pattern),
        };
        let parsed: Vec<_> = patterns.iter().flat_map(parse).collect();
        let any = parsed.len() < patterns.len();
        Self { names: names.into_iter().collect(), patterns: parsed, any }
    }

    fn contains(&self, topic: &str) -> bool {
        self.any
            || self.names.contains(topic)
            || self.patterns.iter().any(|pattern| pattern.is_match(topic))
    }

    /// Fails if the record is a copy of one that this consumer has never read. Such a copy belongs
    /// to another group, and is meant for that group's handlers.
    pub(crate) fn check(&self, record: &Record) -> Result<(), ConsumerError> {
        let origin = record.origin();
        if origin == record.coordinates() || self.contains(&origin.topic) {
            return Ok(());
        }
        let source = format!(
            "the record is a copy of {origin}, but this consumer does not read `{topic}`: another \
             group seems to use the retry topic `{retries}`. Give each group retry topics of its \
             own. If `{topic}` was removed from `subscribe`, keep it there until its copies are \
             processed",
            topic = origin.topic,
            retries = record.topic(),
        );
        let (at, source) = (record.coordinates(), BoxError::from(source));
        let help = "give each group retry topics of its own";
        log_stop("consumer", at, origin, None, help, &*source);
        Err(ConsumerError::Stopped { at: at.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains_in(newer_protocol: bool, subscription: &[&str], topic: &str) -> bool {
        let subscription: Vec<_> = subscription.iter().map(|&topic| topic.to_owned()).collect();
        SourceTopics::new(&subscription, newer_protocol).contains(topic)
    }

    fn contains(subscription: &[&str], topic: &str) -> bool {
        contains_in(false, subscription, topic)
    }

    #[test]
    fn subscription_contains_names_and_pattern_matches() {
        assert!(contains(&["orders"], "orders"));
        assert!(!contains(&["orders"], "orders2") && !contains(&["order."], "orders"));
        assert!(contains(&["^order"], "orders2") && contains(&["^a$", "^[a-z]+\\.eu$"], "bank.eu"));
        assert!(!contains(&["^order"], "bank") && !contains(&["^order$"], "orders"));
        assert!(contains(&["^(a)\\1$"], "aa"), "only librdkafka can parse this pattern");
    }

    #[test]
    fn pattern_matches_whole_names_in_the_newer_protocol() {
        let contains = |pattern, topic| contains_in(true, &[pattern, "name"], topic);
        assert!(!contains("^order", "orders") && contains("^order.*", "orders"));
        assert!(contains("^order|bank", "bank") && !contains("^order|bank", "banks"));
        assert!(contains("^order", "name") && !contains("^order", "name2"));
        assert!(contains("^(a)\\1$", "aa"), "only the brokers can parse this pattern");
    }
}
