use rdkafka::message::{Header, OwnedHeaders};

/// A message to produce. It starts without a key, a payload or headers.
#[derive(Clone, Debug)]
#[must_use]
pub struct Message {
    pub(super) topic: String,
    pub(super) partition: Option<i32>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: Option<OwnedHeaders>,
    pub(super) timestamp: Option<i64>,
}

impl Message {
    /// Creates a message for this topic, without key and payload.
    pub fn to(topic: impl Into<String>) -> Self {
        let (topic, partition, key, payload) = (topic.into(), None, None, None);
        Self { topic, partition, key, payload, headers: None, timestamp: None }
    }

    /// Sets the partition. Default: chosen by a hash of the key or, without a key, by librdkafka.
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the key. Default: null.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. Default: null, which is a tombstone.
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the timestamp, in milliseconds since 1970. Default: the time of sending.
    pub fn timestamp(mut self, millis: i64) -> Self {
        self.timestamp = Some(millis);
        self
    }

    /// Adds a header. A name can occur more than once.
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.with_header(name, Some(value.as_ref()))
    }

    /// Adds a header with a null value.
    pub fn null_header(self, name: &str) -> Self {
        self.with_header(name, None)
    }

    fn with_header(mut self, key: &str, value: Option<&[u8]>) -> Self {
        let headers = self.headers.unwrap_or_default();
        self.headers = Some(headers.insert(Header { key, value }));
        self
    }
}
