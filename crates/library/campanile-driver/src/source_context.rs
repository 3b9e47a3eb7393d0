//! What the driver gives to its source.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::control::{Control, DriverStatus};
use crate::handle::Handle;
use crate::source::{Assignment, Usage};

/// The driver of a source, as the source sees it.
#[derive(Clone)]
pub struct SourceContext {
    control: Arc<Control>,
    usage: Arc<Usage>,
}

impl SourceContext {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control, usage: Arc::default() }
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Creates the assignment of a partition, to be reported by [`Event::Assigned`](crate::source::Event).
    pub fn assignment(&self, topic: impl Into<Arc<str>>, partition: i32) -> Assignment {
        Assignment::new(topic.into(), partition, self.usage.clone())
    }

    /// Returns how much the records of all partitions take.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Creates a handle of the consumer.
    pub fn handle(&self) -> Handle {
        Handle::new(self.control.clone())
    }

    /// Checks whether the consumer shuts down. A source that is starting then stops waiting.
    pub fn is_shutting_down(&self) -> bool {
        self.control.is_shutting_down()
    }

    /// Reports that the source makes progress while it starts. Once it is polled, the driver does this.
    pub fn report_progress(&self) {
        self.control.status().record_poll();
    }

    /// Sets whether only a new process can connect, because the files of its certificate were replaced. Such
    /// a consumer is not live. Returns whether this was set before.
    pub fn set_certificate_stale(&self, stale: bool) -> bool {
        self.control.status().stale_certificate.swap(stale, Ordering::Relaxed)
    }
}

/// A context without a driver, for tests of a source.
impl Default for SourceContext {
    fn default() -> Self {
        let control = Control::new(DriverStatus::new(Duration::MAX));
        Self::new(Arc::new(control))
    }
}

impl fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext").finish_non_exhaustive()
    }
}
