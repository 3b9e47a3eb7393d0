//! The dead-letter topic of each consumed topic, and the check that no dead letter is consumed
//! again.

use std::collections::HashMap;
use std::sync::Arc;

use campanile_core::ConfigError;

use super::DeadLetters;

/// The topics that are consumed, each with its dead-letter topic. A retry topic has none, because
/// its records originate from other topics.
#[derive(Default)]
pub(crate) struct DeadLetterTargets(HashMap<Arc<str>, Option<Arc<str>>>);

impl DeadLetterTargets {
    /// Adds a topic that is consumed.
    ///
    /// # Errors
    /// Fails if the topic has no valid dead-letter topic, or if a dead-letter topic is consumed as
    /// well: a record that keeps failing would come back forever.
    pub(crate) fn add(
        &mut self,
        letters: &DeadLetters,
        source: &Arc<str>,
    ) -> Result<(), ConfigError> {
        if self.0.contains_key(source) {
            return Ok(());
        }
        let target = letters.topic_of(source).map_err(ConfigError::new)?;
        self.0.insert(source.clone(), Some(target));
        let mut targets =
            self.0.iter().filter_map(|(source, target)| Some((source, target.as_ref()?)));
        match targets.find(|(_, target)| self.0.contains_key(*target)) {
            None => Ok(()),
            Some((source, target)) => Err(ConfigError::new(format!(
                "`{target}` is consumed, but is also the dead-letter topic of `{source}`: \
                 subscribe to only one of them, or choose another dead-letter topic"
            ))),
        }
    }

    /// Adds a retry topic that is consumed.
    pub(crate) fn add_retry_topic(&mut self, topic: &Arc<str>) {
        self.0.insert(topic.clone(), None);
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.values().flatten()
    }
}
