//! The messages that processing a record produces.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use campanile_core::{Coordinates, Output, Record};

/// The messages that processing one record produces, possibly none: the response of a service that is
/// [served in transactions](crate::Consumer::serve_transactional).
///
/// Outputs belong to one record and contain its coordinates and the id of its topic. If that record is delivered again after it
/// was processed, its outputs are sent; for a duplicate at other coordinates, nothing is sent.
///
/// ```
/// use campanile_core::{BoxError, Request};
/// use campanile_kafka::{Output, Outputs};
///
/// async fn bill(request: Request<String>) -> Result<Outputs, BoxError> {
///     let invoice = Output::to("invoices").key(request.body().clone()).payload("100");
///     Ok(Outputs::of(request.record()).with(invoice))
/// }
/// ```
#[must_use]
pub struct Outputs {
    pub(super) at: Coordinates,
    pub(super) topic_id: Option<Arc<str>>,
    pub(super) messages: Vec<Output>,
    /// Whether a codec has encoded the outputs for the key's entry.
    pub(super) kept: AtomicBool,
}

impl Outputs {
    /// Creates the outputs of this record, without any message yet.
    pub fn of(record: &Record) -> Self {
        Self::at(record.coordinates().clone(), record.topic_id().cloned(), Vec::new())
    }

    pub(super) fn at(at: Coordinates, topic_id: Option<Arc<str>>, messages: Vec<Output>) -> Self {
        Self { at, topic_id, messages, kept: AtomicBool::new(false) }
    }

    /// Checks whether these are the outputs of this record.
    pub(super) fn is_of(&self, record: &Record) -> bool {
        self.at == *record.coordinates() && self.topic_id.as_ref() == record.topic_id()
    }

    /// Appends a message, with the [headers of the current trace](Output::with_current_trace).
    /// Messages for the same partition keep their order.
    pub fn with(mut self, output: Output) -> Self {
        self.messages.push(output.with_current_trace());
        self
    }
}

impl Extend<Output> for Outputs {
    fn extend<I: IntoIterator<Item = Output>>(&mut self, outputs: I) {
        self.messages.extend(outputs.into_iter().map(Output::with_current_trace));
    }
}

impl Clone for Outputs {
    fn clone(&self) -> Self {
        Self {
            at: self.at.clone(),
            topic_id: self.topic_id.clone(),
            messages: self.messages.clone(),
            kept: AtomicBool::new(self.kept.load(Ordering::Relaxed)),
        }
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics = self.messages.iter().map(|message| &message.topic);
        write!(f, "Outputs of {} for ", self.at)?;
        f.debug_list().entries(topics).finish()
    }
}
