//! The choice of the dead-letter topic.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::panic_text;

/// The longest topic name that Kafka allows.
const LONGEST: usize = 249;

#[derive(Clone)]
pub(super) enum Topic {
    One(Arc<str>),
    BySource(Arc<dyn Fn(&str) -> String + Send + Sync>),
}

impl Topic {
    /// Returns the dead-letter topic of a source topic. The error says why there is none.
    pub(super) fn of(&self, source: &str) -> Result<Arc<str>, String> {
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
        if !is_name(&topic) {
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

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(topic) => write!(f, "{topic:?}"),
            Self::BySource(_) => f.write_str("by source"),
        }
    }
}

fn is_name(topic: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST).contains(&topic.len())
        && topic.bytes().all(legal)
        && topic != "."
        && topic != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_topic_and_what_is_the_records_own_is_refused() {
        for (topic, why) in [
            ("", "not a valid topic name"),
            ("a b", "not a valid topic name"),
            ("a\0b", "not a valid topic name"),
            ("..", "not a valid topic name"),
            ("orders", "`orders` cannot be its own"),
        ] {
            let error = Topic::One(topic.into()).of("orders").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(Topic::One("x".repeat(250).into()).of("orders").is_err());
        assert_eq!(&*Topic::One("orders.dead".into()).of("orders").unwrap(), "orders.dead");
    }

    #[test]
    fn a_choice_that_panics_has_chosen_none() {
        let topic = Topic::BySource(Arc::new(|_| panic!("injected panic")));
        let error = topic.of("orders").unwrap_err();
        assert!(error.contains("injected panic"), "{error}");
    }
}
