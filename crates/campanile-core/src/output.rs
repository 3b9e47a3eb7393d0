//! What a record's processing gives out.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::Timestamp;

/// A message to be produced. Its partition follows from its key, as Kafka's own clients choose it.
///
/// `Debug` prints the topic only.
///
/// ```
/// use campanile_core::Output;
///
/// let invoice = Output::to("invoices").key("account-7").payload("100").header("currency", "EUR");
/// assert_eq!(invoice.key.as_deref(), Some(&b"account-7"[..]));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// Where it goes.
    pub topic: Arc<str>,
    /// What its partition follows from. `None`: any partition.
    pub key: Option<Bytes>,
    /// What it says. `None`: a tombstone.
    pub payload: Option<Bytes>,
    /// Its time. `None`: when it is produced.
    pub timestamp: Option<Timestamp>,
    /// In their order; a name may come more than once, and a value may be null.
    pub headers: Vec<(String, Option<Bytes>)>,
}

impl Output {
    /// One for this topic, without key and payload.
    pub fn to(topic: impl Into<Arc<str>>) -> Self {
        let topic = topic.into();
        Self { topic, key: None, payload: None, timestamp: None, headers: Vec::new() }
    }

    /// Sets the key. Default: none, and any partition.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. Default: none, a tombstone.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Adds a header, behind those that are there.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Adds a header whose value is null.
    pub fn null_header(mut self, name: impl Into<String>) -> Self {
        self.headers.push((name.into(), None));
        self
    }

    /// Sets the time, in whole milliseconds. Default: when it is produced.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// About how many bytes it keeps in memory.
    #[doc(hidden)]
    pub fn size(&self) -> usize {
        let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let header = |(name, value): &(String, _)| size_of_val(name) + name.len() + part(value);
        let headers: usize = self.headers.iter().map(header).sum();
        size_of::<Self>() + part(&self.key) + part(&self.payload) + headers
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({})", self.topic)
    }
}
