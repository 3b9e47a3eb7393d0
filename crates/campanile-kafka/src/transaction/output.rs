//! What a record's processing gives out.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use campanile_core::{Coordinates, Record, Timestamp};

use crate::publish::Message;

/// A message to be produced. Its partition follows from its key, as Kafka's own clients choose it.
///
/// `Debug` prints the topic only.
#[derive(Clone, PartialEq, Eq)]
pub struct Output(pub(super) Message);

impl Output {
    /// One for this topic, without key and payload.
    pub fn to(topic: impl Into<String>) -> Self {
        Self(Message {
            topic: topic.into().into(),
            key: None,
            payload: None,
            timestamp: None,
            headers: Vec::new(),
        })
    }

    /// Sets the key. Default: none, and any partition.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// Sets the payload. Default: none, a tombstone.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.0.payload = Some(payload.into());
        self
    }

    /// Adds a header, behind those that are there.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.0.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Adds a header whose value is null.
    pub fn null_header(mut self, name: impl Into<String>) -> Self {
        self.0.headers.push((name.into(), None));
        self
    }

    /// Sets the time, in whole milliseconds. Default: when it is produced.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.0.timestamp = Some(timestamp);
        self
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({})", self.0.topic)
    }
}

/// All messages that the processing of one record gives out, or none: what a service answers with that
/// is [served in transactions](crate::Consumer::serve_transactional).
///
/// It belongs to its record, and knows where that stands: by that, a record which comes again after it
/// was processed gets its outputs sent, and a duplicate that stands elsewhere does not.
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
pub struct Outputs {
    pub(super) at: Coordinates,
    pub(super) messages: Vec<Message>,
    /// Whether a codec has written it down.
    pub(super) kept: AtomicBool,
}

impl Outputs {
    /// Those of this record: none yet.
    pub fn of(record: &Record) -> Self {
        Self::at(record.coordinates().clone(), Vec::new())
    }

    pub(super) fn at(at: Coordinates, messages: Vec<Message>) -> Self {
        Self { at, messages, kept: AtomicBool::new(false) }
    }

    /// Adds a message, behind those that are there. Those for one partition keep their order.
    pub fn with(mut self, output: Output) -> Self {
        self.messages.push(output.0);
        self
    }
}

impl Extend<Output> for Outputs {
    fn extend<I: IntoIterator<Item = Output>>(&mut self, outputs: I) {
        self.messages.extend(outputs.into_iter().map(|output| output.0));
    }
}

impl Clone for Outputs {
    fn clone(&self) -> Self {
        Self {
            at: self.at.clone(),
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
