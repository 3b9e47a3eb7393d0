//! Which topic's dead letters go where, and that no letter comes back.

use std::collections::HashMap;
use std::sync::Arc;

use campanile_core::ConfigError;

use super::DeadLetters;

/// The topics that are consumed, each with the one for its dead letters; a retry topic has none, for
/// its records have other origins.
#[derive(Default)]
pub(crate) struct Targets(HashMap<Arc<str>, Option<Arc<str>>>);

impl Targets {
    /// This topic is consumed. A topic of dead letters that is consumed as well is an error: what
    /// dies would come again, for ever.
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
        let mut targets = self.0.iter().filter_map(|(of, target)| Some((of, target.as_ref()?)));
        match targets.find(|(_, target)| self.0.contains_key(*target)) {
            None => Ok(()),
            Some((source, target)) => Err(ConfigError::new(format!(
                "`{target}` is consumed, and gets the dead letters of `{source}`: subscribe to one \
                 of them only, or choose another topic for the dead letters"
            ))),
        }
    }

    /// This retry topic is consumed.
    pub(crate) fn add_retries(&mut self, topic: &Arc<str>) {
        self.0.insert(topic.clone(), None);
    }

    /// The topics for dead letters.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.values().flatten()
    }
}
