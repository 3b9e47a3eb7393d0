//! Which topic's dead letters go where, and that no letter comes back.

use std::collections::HashMap;
use std::sync::Arc;

use campanile_core::ConfigError;

use super::DeadLetters;

/// The topics that are consumed, each with the one for its dead letters.
#[derive(Default)]
pub(crate) struct Targets(HashMap<Arc<str>, Arc<str>>);

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
        self.0.insert(source.clone(), target);
        let looped = self.0.iter().find(|(_, target)| self.0.contains_key(*target));
        match looped {
            None => Ok(()),
            Some((source, target)) => Err(ConfigError::new(format!(
                "`{target}` is consumed, and gets the dead letters of `{source}`: subscribe to one \
                 of them only, or choose another topic for the dead letters"
            ))),
        }
    }

    /// The topics for dead letters.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.values()
    }
}
