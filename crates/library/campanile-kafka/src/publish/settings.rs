//! The user's settings for a producer of the driver.

use std::fmt;
use std::time::Duration;

/// librdkafka settings that override the consumer's, and the time limit of one publication.
#[derive(Clone)]
pub(crate) struct PublishSettings {
    pub(super) overrides: Vec<(String, String)>,
    pub(super) budget: Duration,
}

impl PublishSettings {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { overrides: Vec::new(), budget }
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.overrides.push((name.into(), value.into()));
    }

    /// Sets the time limit, which is at least a second so that a broker can respond.
    pub(crate) fn set_budget(&mut self, budget: Duration) {
        self.budget = budget.max(Duration::from_secs(1));
    }
}

/// Omits the settings, because their values may be secrets.
impl fmt::Debug for PublishSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishSettings").field("timeout", &self.budget).finish_non_exhaustive()
    }
}
