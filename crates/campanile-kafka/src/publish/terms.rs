//! What users say about a producer of the driver's.

use std::fmt;
use std::time::Duration;

/// Settings of librdkafka's, over the consumer's, and how long one publication may take.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(super) settings: Vec<(String, String)>,
    pub(super) budget: Duration,
}

impl Terms {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { settings: Vec::new(), budget }
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.settings.push((name.into(), value.into()));
    }

    /// At least a second, in which a broker can answer.
    pub(crate) fn set_budget(&mut self, budget: Duration) {
        self.budget = budget.max(Duration::from_secs(1));
    }
}

/// Values of settings may be secrets.
impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("timeout", &self.budget).finish_non_exhaustive()
    }
}
