//! What does not decode.

use std::error::Error;
use std::fmt;

use crate::{BoxError, Coordinates, Record};

/// A record's payload does not make a body. Says which record and why, and never shows the payload.
#[derive(Debug)]
pub struct DecodeError {
    coordinates: Coordinates,
    is_null: bool,
    source: BoxError,
}

impl DecodeError {
    pub(super) fn of(record: &Record, source: BoxError) -> Self {
        let (coordinates, is_null) = (record.coordinates().clone(), record.payload().is_none());
        Self { coordinates, is_null, source }
    }

    /// Which record.
    pub fn coordinates(&self) -> &Coordinates {
        &self.coordinates
    }

    /// Whether the payload is null, a tombstone. `or_tombstone()` makes such a body `None`.
    pub fn is_null_payload(&self) -> bool {
        self.is_null
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot decode {}", self.coordinates)
    }
}

impl Error for DecodeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The source of a [`DecodeError`] for a tombstone.
#[derive(Debug)]
pub(super) struct NullPayload;

impl fmt::Display for NullPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the payload is null (a tombstone); `or_tombstone()` lets it through as `None`")
    }
}

impl Error for NullPayload {}
