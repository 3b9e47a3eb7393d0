//! The choice of the dead-letter topic.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use campanile_driver::private::panic_text;

/// The longest topic name that Kafka allows.
const MAX_TOPIC_NAME: usize = 249;

#[derive(Clone)]
pub(super) enum TopicChoice {
    One(Arc<str>),
    BySource(Arc<dyn Fn(&str) -> String + Send + Sync>),
}

impl TopicChoice {
    /// Finds the dead-letter topic of a source topic. The error says why there is none.
    pub(super) fn resolve(&self, source: &str) -> Result<Arc<str>, String> {
        let topic = match self {
            Self::One(topic) => topic.clone(),
            Self::BySource(choose) => {
                let chosen = catch_unwind(AssertUnwindSafe(|| choose(source)));
                let panicked = |panic: Box<dyn std::any::Any + Send>| {
                    let text = panic_text(panic);
                    format!("the dead-letter topic function panicked for `{source}`: {text}")
                };
                chosen.map_err(panicked)?.into()
            }
        };
        if !is_valid_name(&topic) {
            return Err(format!(
                "`{topic}` cannot be the dead-letter topic of `{source}`: not a valid topic name"
            ));
        }
        if *topic == *source {
            return Err(format!("`{source}` cannot be its own dead-letter topic"));
        }
        Ok(topic)
    }
}

impl fmt::Debug for TopicChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(topic) => write!(f, "{topic:?}"),
            Self::BySource(_) => f.write_str("by source"),
        }
    }
}

fn is_valid_name(topic: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_TOPIC_NAME).contains(&topic.len())
        && topic.bytes().all(legal)
        && topic != "."
        && topic != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_topic_and_own_topic_are_refused() {
        for (topic, why) in [
            ("", "not a valid topic name"),
            ("a b", "not a valid topic name"),
            ("a\0b", "not a valid topic name"),
            ("..", "not a valid topic name"),
            ("orders", "`orders` cannot be its own"),
        ] {
            let error = TopicChoice::One(topic.into()).resolve("orders").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(TopicChoice::One("x".repeat(250).into()).resolve("orders").is_err());
        assert_eq!(
            &*TopicChoice::One("orders.dead".into()).resolve("orders").unwrap(),
            "orders.dead"
        );
    }

    #[test]
    fn panicking_choice_is_an_error() {
        let topic = TopicChoice::BySource(Arc::new(|_| panic!("injected panic")));
        let error = topic.resolve("orders").unwrap_err();
        assert!(error.contains("injected panic"), "{error}");
    }
}
