//! The builder of records, for drivers and tests.

use std::sync::Arc;

use bytes::Bytes;

use super::attempt::AttemptState;
use super::{Coordinates, Headers, Inner, Record, Timestamp};

/// Builds a [`Record`]. Without a payload, the record is a tombstone.
#[derive(Debug)]
#[must_use]
pub struct RecordBuilder {
    coordinates: Coordinates,
    origin: Option<Coordinates>,
    topic_id: Option<Arc<str>>,
    timestamp: Option<Timestamp>,
    key: Option<Bytes>,
    payload: Option<Bytes>,
    headers: Headers,
}

impl RecordBuilder {
    pub(super) fn new(coordinates: Coordinates) -> Self {
        Self {
            coordinates,
            origin: None,
            topic_id: None,
            timestamp: None,
            key: None,
            payload: None,
            headers: Headers::default(),
        }
    }

    /// Sets the coordinates of the original record, if this one is a copy; see [`Record::origin`].
    pub fn origin(mut self, origin: Coordinates) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Sets the id of the topic of the original record; see [`Record::topic_id`].
    pub fn topic_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.topic_id = Some(id.into());
        self
    }

    /// Sets Kafka's record key.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. Without one, the record is a tombstone.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the time at which the record was created or appended.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Appends a header.
    pub fn header(mut self, name: impl Into<Box<str>>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name.into(), Some(value.into()));
        self
    }

    /// Appends a header with a null value.
    pub fn null_header(mut self, name: impl Into<Box<str>>) -> Self {
        self.headers.push(name.into(), None);
        self
    }

    /// Builds the record.
    pub fn build(self) -> Record {
        let Self { coordinates, origin, topic_id, timestamp, key, payload, headers } = self;
        Record(Arc::new(Inner {
            coordinates,
            origin,
            topic_id,
            timestamp,
            key,
            payload,
            headers,
            attempt: AttemptState::default(),
        }))
    }
}
