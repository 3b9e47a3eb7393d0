//! Errors of the decode layers.

use std::error::Error;
use std::fmt;

use crate::{BoxError, Coordinates, Record};

/// A record's payload could not be decoded. Names the record and the reason, and never contains the
/// payload.
#[derive(Debug)]
pub struct DecodeError {
    coordinates: Coordinates,
    is_null: bool,
    source: BoxError,
}

impl DecodeError {
    pub(super) fn new(record: &Record, source: BoxError) -> Self {
        let (coordinates, is_null) = (record.coordinates().clone(), record.payload().is_none());
        Self { coordinates, is_null, source }
    }

    /// Returns the coordinates of the record.
    pub fn coordinates(&self) -> &Coordinates {
        &self.coordinates
    }

    /// Checks whether the payload is null, i.e. a tombstone. `or_tombstone()` decodes such a
    /// payload to `None`.
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
        f.write_str("the payload is null (a tombstone); `or_tombstone()` decodes it to `None`")
    }
}

impl Error for NullPayload {}
